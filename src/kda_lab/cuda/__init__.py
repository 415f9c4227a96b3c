"""The chunk algebra as CUDA.

kda_chunk.cu  three kernels, on tile.cuh (a 16x16 product) and ptx.cuh (four instructions)
compile.py    source to machine code with NVRTC; registers and spills
chunk.py      the launch
emulate.py    the kernel's roundings in plain torch
on_cpu/       the same source run by a C++ compiler, without a GPU
acceptance.py does it compute the rules, on this GPU, and how fast?
"""
