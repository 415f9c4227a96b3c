// A 16x16 tile of a matrix product in the registers of one warp.
//
// A product is written as its formula: left() and right() take a function (row, column)
// -> float and ask it for exactly the entries that this lane owns in the layout of mma. So a
// decay, a norm or a mask is part of the factor, and nothing is staged for it.
#pragma once
#include <ptx.cuh>

constexpr int SUB = 16;    // rows and columns of a tile: a block, the height of an mma
constexpr int STEP = 8;    // depth of one mma

struct Tile { float c[2][4]; };                   // [16, 16]: [half of the columns][entry]
struct Left { unsigned hi[4], lo[4]; };           // [16, 8]
struct Right { unsigned hi[2][2], lo[2][2]; };    // [8, 16]: [half of the columns][entry]

// x = hi + lo up to 2^-22 |x|; where nobody reads lo the compiler drops it
__device__ inline void split(float x, unsigned& hi, unsigned& lo) {
    hi = tf32(x);
    lo = tf32(x - __uint_as_float(hi));
}

template <class F> __device__ inline Left left(F entry) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Left a;
    for (int e = 0; e < 4; ++e)
        split(entry(g + 8 * (e % 2), t + 4 * (e / 2)), a.hi[e], a.lo[e]);
    return a;
}

template <class F> __device__ inline Right right(F entry) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Right b;
    for (int h = 0; h < 2; ++h)
        for (int e = 0; e < 2; ++e)
            split(entry(t + 4 * e, g + 8 * h), b.hi[h][e], b.lo[h][e]);
    return b;
}

// c += a b. Plain: both factors rounded to tf32, an error of about 2^-11 of the
// larger terms. Exact: three of the four products of split factors, small ones first;
// about 2^-22, for three times the work
template <bool exact>
__device__ inline void multiply(Tile& c, const Left& a, const Right& b) {
    for (int h = 0; h < 2; ++h) {
        if (exact) mma(c.c[h], a.lo, b.hi[h]);
        if (exact) mma(c.c[h], a.hi, b.lo[h]);
        mma(c.c[h], a.hi, b.hi[h]);
    }
}

// visit(row, column, entry&) for the entries of the tile that this lane owns
template <class F> __device__ inline void each(Tile& c, F visit) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int h = 0; h < 2; ++h)
        for (int e = 0; e < 4; ++e) visit(g + 8 * (e / 2), 8 * h + 2 * t + e % 2, c.c[h][e]);
}

__device__ inline float warp_sum(float x) {
    for (int lanes = 16; lanes; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}
