"""The chunk algebra as CUDA: launchers here, the sources in ``source/``, what they are tried with in ``accept/``.

kernels.py    KERNELS: every kernel, what launches it, which calls it may answer
operands.py   tensors as the kernels read them, and a call in their words
compile.py    source to machine code with NVRTC; registers and spills; loading
chunk.py      launches kda_chunk.cu: three readable kernels
hopper.py     launches kda_chunk_hopper.cu: one kernel for Hopper, on hopper*.cuh; tensor_maps.py, segments.py
decode.py     launches kda_decode.cu: one decoding step
emulate.py    the readable kernel's roundings in plain torch
on_cpu/       the same sources run by a C++ compiler, without a GPU
accept/       chunk, decode, hopper: do they compute the rules, on this GPU, and how fast? trial: their frame
measure.py    times on a GPU   workloads.py   shapes and inputs on which chunk kernels are compared
"""

from kda_lab.data.lazy import modules, names

_FUNCTIONS = {
    "chunk": ("", "kda_chunk_forward"),
    "decode": ("", "decode_core", "kda_decode"),
    "segments": ("", "best_segments"),
}
__getattr__, __dir__ = names(__name__, modules(__file__) | _FUNCTIONS | {"hopper": ("", "kda_hopper_forward")})
