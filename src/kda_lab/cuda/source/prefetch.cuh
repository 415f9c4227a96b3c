// One PTX instruction, for sources that know what they will read next. on_cpu/prefetch.cuh says the same in plain C++.
#pragma once

// cp.async.bulk.prefetch.L2: starts to bring `bytes`, a multiple of 16, to the L2; nothing waits for it. Before 9.0: nothing
__device__ inline void prefetch(const float* global, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(__cvta_generic_to_global(global)), "r"(bytes) : "memory");
#endif
}
