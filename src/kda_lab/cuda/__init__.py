"""The chunk algebra as CUDA.

kda_chunk.cu  three kernels, on tile.cuh (a 16x16 product) and ptx.cuh (four instructions)
compile.py    source to machine code with NVRTC; registers and spills
chunk.py      the launch
emulate.py    the kernel's roundings in plain torch
on_cpu/       the same source run by a C++ compiler, without a GPU
acceptance.py does it compute the rules, on this GPU, and how fast?

kda_decode.cu  one decoding step in one kernel, on prefetch.cuh and ptx.cuh
decode.py, decode_acceptance.py  its launch; does it compute the step, and how fast?

kda_chunk_hopper.cu  one kernel for Hopper, on hopper*.cuh
hopper.py, hopper_acceptance.py  its launch and checks

workloads.py  shapes and inputs on which chunk kernels are compared
trial.py      the frame of the acceptance checks
"""

from kda_lab.data.lazy import modules, names

_FUNCTIONS = {
    "chunk": ("", "kda_chunk_forward"),
    "decode": ("", "decode_core", "kda_decode"),
    "segments": ("", "best_segments"),
}
__getattr__, __dir__ = names(__name__, modules(__file__) | _FUNCTIONS | {"hopper": ("", "kda_hopper_forward")})
