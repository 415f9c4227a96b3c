// ptx.cuh in plain C++: what the four instructions do, for the threads of run.cpp.
#pragma once

inline unsigned tf32(float x) {
    return std::isfinite(x) ? (__float_as_uint(x) + 0x1000) & ~0x1fffu : __float_as_uint(x);
}

inline void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    static unsigned A[32][32][4], B[32][32][2];    // [warp][lane][entry]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    std::copy(a, a + 4, A[warp][lane]);
    std::copy(b, b + 2, B[warp][lane]);
    __syncwarp();
    for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 8; ++k) {    // row g + 8 (e / 2) of a, column 2 t + e % 2 of b, from the lanes that hold them
            const unsigned x = A[warp][4 * g + k % 4][e / 2 + 2 * (k / 4)], y = B[warp][4 * (2 * t + e % 2) + k % 4][k / 4];
            c[e] += __uint_as_float(x) * __uint_as_float(y);
        }
    __syncwarp();
}

inline void copy_async(float* shared, const float* global, bool there) {
    for (int i = 0; i < 4; ++i) shared[i] = there ? global[i] : 0;
}

inline void wait_for_copies() {}
