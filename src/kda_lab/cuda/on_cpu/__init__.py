"""A CUDA source on a machine without a GPU: compiled by the host's C++ compiler, each CUDA thread a coroutine.

Slow (up to half a second a chunk and head), exact in its indices, masks and barriers: for checks, and for readers who
want to see the kernel run.
"""

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


@functools.cache
def library(source, constants, names):
    """The source as a shared library; names: its kernels in the order in which `run` numbers them."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise RuntimeError(
            "running a CUDA source on a CPU needs a C++ compiler, found neither g++ nor clang++; install one or set CXX"
        )
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernels.so"
        command = [
            compiler,
            "-O2",
            # a coroutine jumps between stacks, which fortified longjmp takes for an error
            "-U_FORTIFY_SOURCE",
            "-std=c++17",
            "-w",
            "-shared",
            "-fPIC",
            f"-I{HERE}",
            f"-I{HERE.parent / 'source'}",
            f'-DSOURCE="{source}"',
            f"-DKERNELS={','.join(names)}",
            *(f"-D{name}={value}" for name, value in constants),
            str(HERE / "run.cpp"),
            "-o",
            str(target),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(
                f"the C++ compiler refused {source}, expected it to compile as it stands:\n{done.stderr}"
            )
        return ctypes.CDLL(str(target))


class Kernel:
    """The same face as `compile.Kernel`; `seed` shuffles the order of the threads between barriers (0: in order)."""

    def __init__(self, source, constants, names, name, seed=0):
        self.library, self.number, self.name, self.seed = (
            library(source, constants, names),
            names.index(name),
            name,
            seed,
        )

    def launch(self, blocks, threads, args, stream=None):
        if self.library.run(
            self.number, ctypes.c_longlong(blocks), threads, ctypes.byref(args), ctypes.c_uint(self.seed)
        ):
            raise RuntimeError(
                f"{self.name}: some threads wait at a barrier that others never reach, expected every thread there"
            )
