// One block of tokens on the state, by the warpgroup that holds 64 rows of it. S [64, KEY] stays in fp32 in the accumulators of
// the tensor cores for the whole sequence: with g = lane / 4, t = lane % 4 a thread holds rows 16 warp + g and + 8,
// columns 8j + 2t and + 1; S[4j + 2 (row / 8) + column]. Rows of S never meet, so warpgroups never wait for each other.
#pragma once
#include <hopper_layout.cuh>
#include <hopper.cuh>

typedef float State[KEY / 2];

struct Factor { Four x[KEY / 16]; };    // of the channels of a thread: 8j + 2t, + 1 for two j

ON_DEVICE Factor read_factor(unsigned a, int lane) {
    Factor f;
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u) f.x[u] = read_four(a + lane % 4 * KEY + ((u ^ lane % 4) << 4));
    return f;
}
ON_DEVICE void scale(State& S, const Factor& f) {
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u)
        #pragma unroll
        for (int h = 0; h < 4; h += 2) {
            S[8 * u + h] *= f.x[u].x, S[8 * u + h + 1] *= f.x[u].y;
            S[8 * u + 4 + h] *= f.x[u].z, S[8 * u + 4 + h + 1] *= f.x[u].w;
        }
}

// [one-accumulator] [U; O]^T = V^T [T; M]^T + S [-W; Q]^T: x[0..7] are U, x[8..15] are O, transposed
// V^T from memory as left factor. rows: tokens that exist; what stands in the others may be nan. In flight on return
ON_DEVICE void multiply_values(float (&x)[16], unsigned stage, int group, int warp, int lane, int rows) {
    unsigned v[4];
    const int token = lane % 8 + lane / 16 * 8, unit = 2 * warp + lane / 8 % 2;
    load_tiles_transposed(v, stage + Stage::V + group * TILE + token * 128 + ((unit ^ token % 8) << 4));
    if (rows < C) {
        const int t = 2 * (lane % 4);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int first = t + i / 2 * 8;
            v[i] &= (first < rows ? 0xffffu : 0) | (first + 1 < rows ? 0xffff0000u : 0);
        }
    }
    pin(x), wgmma_fence();
    wgmma_keys(x, v, describe(stage + Stage::TM, 512, 128, 0), 0);
    wgmma_commit();
}
// S <- S Diag(f), then its part of X, from registers: an accumulator is laid out like a left factor. In flight on return
ON_DEVICE void multiply_state(State& S, float (&x)[16], const Factor& f, unsigned stage) {
    unsigned s[KEY / 16][4];
    scale(S, f);
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u)
        #pragma unroll
        for (int i = 0; i < 4; ++i) s[u][i] = pack(S[8 * u + 2 * i], S[8 * u + 2 * i + 1]);
    const auto WQ = describe(stage + Stage::WQ, 16, 1024, 1);
    pin(x), wgmma_fence();
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u) wgmma_keys(x, s[u], WQ + (u / 4 * (2 * TILE / 16) + u % 4 * 2), 1);
    wgmma_commit();
}
// S <- S + U^T write, in flight on return. o: O as bf16, two channels of a token in a word
ON_DEVICE void update(State& S, float (&x)[16], unsigned (&o)[4], unsigned stage, int lane) {
    wgmma_wait<0>(), pin(x);
    if (UNBOUNDED && read_word(stage + Stage::EDGES)) scale(S, read_factor(stage + Stage::ACROSS, lane));
    unsigned u[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) u[i] = pack(x[2 * i], x[2 * i + 1]);
    pin(S), wgmma_fence();
    wgmma_tokens(S, u, describe(stage + Stage::WRITE, TILE, 1024, 1));
    wgmma_commit();
    #pragma unroll
    for (int i = 0; i < 4; ++i) o[i] = pack(x[8 + 2 * i], x[8 + 2 * i + 1]);
}
// [/one-accumulator]

// O^T to a tile [16][64], swizzled
ON_DEVICE void write_out(const unsigned (&o)[4], unsigned tile, int warp, int lane) {
    const int row = lane % 8 + lane / 16 * 8, unit = 2 * warp + lane / 8 % 2;
    store_tiles_transposed(tile + row * 128 + ((unit ^ row % 8) << 4), o[0], o[1], o[2], o[3]);
    fence_async();
}
// what exists of a last block: the copy engine would write over the next sequence
ON_DEVICE void copy_rows(__nv_bfloat16* to, long long row_stride, unsigned tile, int rows, int thread) {
    const int r = thread / 8, u = thread % 8;
    if (r < rows) *(Four*)(to + r * row_stride + 8 * u) = read_four(tile + r * 128 + ((u ^ r % 8) << 4));
}

// rows of S from or to an array [VALUE, KEY]; slice: which 64 rows. Without an array 0, or the identity
ON_DEVICE void load_state(State& S, const float* from, bool identity, int slice, int warp, int lane) {
    const long long first = (64 * slice + 16 * warp + lane / 4) * KEY + 2 * (lane % 4);
    #pragma unroll
    for (int j = 0; j < KEY / 8; ++j)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int column = 8 * j + 2 * (lane % 4) - (64 * slice + 16 * warp + lane / 4 + 8 * h);
            const Two one = {identity && column == 0 ? 1.f : 0, identity && column == -1 ? 1.f : 0};
            const Two x = from ? *(const Two*)(from + first + 8 * h * KEY + 8 * j) : one;
            S[4 * j + 2 * h] = x.x, S[4 * j + 2 * h + 1] = x.y;
        }
}
ON_DEVICE void store_state(const State& S, float* to, int slice, int warp, int lane) {
    const long long first = (64 * slice + 16 * warp + lane / 4) * KEY + 2 * (lane % 4);
    #pragma unroll
    for (int j = 0; j < KEY / 8; ++j)
        #pragma unroll
        for (int h = 0; h < 2; ++h)
            *(Two*)(to + first + 8 * h * KEY + 8 * j) = Two{S[4 * j + 2 * h], S[4 * j + 2 * h + 1]};
}
