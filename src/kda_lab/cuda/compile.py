"""From a .cu file to machine code, without a toolkit and without a GPU: NVRTC through cuda.core.

`build` compiles one source with its constants, `resources` reads what the assembler reported, `Kernel` launches it.
`python -m kda_lab.cuda` prints the table for every kernel.
"""

import ctypes
import dataclasses
import functools
import importlib.util
import io
import os
import re
import shutil
import threading
from pathlib import Path
from typing import NamedTuple

from kda_lab.cuda import on_cpu
from kda_lab.data import sources

HERE = Path(__file__).parent / "source"
PACKAGES = "pip install cuda-core nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl"


class Build(NamedTuple):
    """One compiled source: machine code, the assembler's report, and for which architecture."""

    cubin: bytes
    report: str
    arch: str


class Resources(NamedTuple):
    """What one kernel takes of the chip, in registers a thread and bytes."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    static_shared: int


def header_folders():
    """Every folder where cuda_fp16.h and what it includes can be: of the pip packages first, then of a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in spec.submodule_search_locations] if spec else []
    found = [folder for root in roots for folder in sorted(root.glob("*/include"))]
    toolkits = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    if nvcc := shutil.which("nvcc"):
        toolkits.append(Path(nvcc).resolve().parent.parent)
    found += [Path(toolkit) / "include" for toolkit in toolkits if toolkit]
    found += [folder / "cccl" for folder in found]  # from 13.0 on, nv/target lies there
    found = [str(folder) for folder in dict.fromkeys(found) if folder.is_dir()]
    if not any(Path(folder, "cuda_fp16.h").exists() for folder in found):
        raise RuntimeError(
            f"found no CUDA headers, neither in the pip packages nor in a toolkit; set CUDA_HOME or run: {PACKAGES}"
        )
    return found


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.M)


@functools.cache
def with_includes(path):
    """A CUDA file and all that it includes, directly or not, as far as it lies beside the file or in ``cuda/source/``.

    Headers of the system lie elsewhere. Folders are searched as compilers do: for ``"name"`` that of the including file
    first, for ``<name>`` that of the compiled file. So the stand-ins of ``cuda/on_cpu/`` never take the place of what a
    GPU runs.

    >>> sorted(found.name for found in with_includes(HERE / "kda_chunk.cu"))
    ['kda_chunk.cu', 'ptx.cuh', 'tile.cuh']
    """
    folders = [path.parent, HERE]
    found, todo = {path}, [path]
    while todo:
        source = todo.pop()
        for quoted, bracketed in _INCLUDE.findall(source.read_text(encoding="utf-8")):
            places = [source.parent, *folders] if quoted else folders
            headers = (place / (quoted or bracketed) for place in places)
            # one of the system is nowhere here, and adds nothing
            header = next((place.resolve() for place in headers if place.is_file()), source)
            if header not in found:
                found.add(header)
                todo.append(header)
    return found


def architecture():
    """The current GPU's, with its own instructions (the suffix a, from 9.0 on); without a GPU sm_90a, a Hopper."""
    import torch

    if not torch.cuda.is_available():
        return "sm_90a"
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def build(source, constants=(), arch=None):
    """Compile a .cu file (a path, or a name in this folder) with -D constants, pairs or a dict -> Build.

    Compiled once in a process for the same arguments; several threads may compile different ones at once.
    """
    pairs = constants.items() if isinstance(constants, dict) else constants
    sources.note(with_includes(HERE / source))  # a recorded cell depends on these files
    return _build(HERE / source, tuple((name, str(value)) for name, value in pairs), arch or architecture())


_importing = threading.Lock()  # cuda.core is not importable from two threads at once


def _compiler(path):
    """Program and ProgramOptions of cuda.core, wherever this version keeps them."""
    with _importing:
        try:
            try:
                from cuda.core import Program, ProgramOptions
            except ImportError:  # its name before version 1
                from cuda.core.experimental import Program, ProgramOptions
        except ImportError as error:
            raise RuntimeError(
                f"compiling {path.name} needs cuda.core and NVRTC, which cannot be imported ({error}); run: {PACKAGES}"
            ) from error
    return Program, ProgramOptions


@functools.cache
def _build(path, constants, arch):
    Program, ProgramOptions = _compiler(path)
    # a cached compilation has no assembler report
    fresh = {"no_cache": True} if any(f.name == "no_cache" for f in dataclasses.fields(ProgramOptions)) else {}
    # ftz: state entries below 2^-126 become zero, and exp2f is then one instruction
    options = ProgramOptions(
        name=path.name,
        arch=arch,
        std="c++17",
        ftz=True,
        define_macro=list(constants),
        ptxas_options=["-v"],
        include_path=[str(path.parent), *header_folders()],
        **fresh,
    )
    report = io.StringIO()
    code = Program(path.read_text(), "c++", options).compile("cubin", logs=report).code
    return Build(bytes(code), report.getvalue(), arch)


def resources(built):
    """Read a Build's report -> {kernel: Resources}.

    >>> report = '''ptxas info    : Compiling entry function 'f' for 'sm_90a'
    ...     16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
    ... ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem'''
    >>> resources(Build(b"", report, "sm_90a"))
    {'f': Resources(registers=40, spill_stores=8, spill_loads=4, stack=16, static_shared=1024)}
    """
    table = {}
    for part in built.report.split("Compiling entry function '")[1:]:

        def number(pattern):
            found = re.search(r"(\d+) " + pattern, part)
            return int(found[1]) if found else 0

        table[part.split("'")[0]] = Resources(
            *map(number, ("registers", "bytes spill stores", "bytes spill loads", "bytes stack frame", "bytes smem"))
        )
    if not table:
        raise RuntimeError(
            "the assembler reported no kernel, expected a section for each; compile without a cache and with ptxas -v"
        )
    return table


def check(result):
    """The values of a driver call, or its error as an exception."""
    from cuda.bindings import driver

    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(
            f"the CUDA driver answered {status.name}, expected CUDA_SUCCESS; run under compute-sanitizer to see where"
        )
    return values[0] if values else None


def current_stream(device):
    """The handle of torch's current stream; torch's context becomes the driver's too, as a new thread has none."""
    import torch
    from cuda.bindings import driver

    if not int(check(driver.cuCtxGetCurrent())):
        check(driver.cuCtxSetCurrent(check(driver.cuDevicePrimaryCtxRetain(check(driver.cuDeviceGet(device.index))))))
    return torch.cuda.current_stream(device).cuda_stream


class Kernel:
    """A kernel on one GPU, ready to launch with one argument block."""

    def __init__(self, built, name, shared_bytes):
        from cuda.bindings import driver

        self.driver, self.shared_bytes, self.code = driver, shared_bytes, built.cubin
        self.module = check(driver.cuModuleLoadData(self.code))
        self.function = check(driver.cuModuleGetFunction(self.module, name.encode()))
        # beyond 48 KB a kernel has to ask
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(self.function, attribute, shared_bytes))

    def launch(self, blocks, threads, args, stream):
        """Start `blocks` thread blocks on a stream, along x: y and z end at 65,535.

        args: a ctypes.Structure, which the call copies   stream: a handle.
        """
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        check(
            self.driver.cuLaunchKernel(
                self.function, blocks, 1, 1, threads, 1, 1, self.shared_bytes, stream, ctypes.addressof(pointers), 0
            )
        )


@functools.cache
def load(source, names, constants, device):
    """The kernels of a source with these constants, ready to launch, in the order of `names` -> {name: kernel}.

    constants: with ``defines()``, the -D pairs, and ``shared_bytes``, {name: dynamic shared memory}
    device: the number of a GPU, or None for the CPU, which runs the same source through `on_cpu`.
    """
    if device is None:
        return {name: on_cpu.Kernel(source, constants.defines(), names, name) for name in names}
    built = build(source, constants.defines())
    return {name: Kernel(built, name, constants.shared_bytes[name]) for name in names}


@functools.cache
def multiprocessors(device, without):
    """How many GPU number `device` has; `without` a GPU (device None), as many as that says."""
    import torch

    return without if device is None else torch.cuda.get_device_properties(device).multi_processor_count
