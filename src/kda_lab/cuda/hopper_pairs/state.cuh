// A pair of blocks on the state, by the warpgroup that holds 64 rows of it. S [64, KEY] stays in fp32 in the accumulators of
// the tensor cores for the whole sequence: with g = lane / 4, t = lane % 4 a thread holds rows 16 warp + g and + 8,
// columns 8j + 2t and + 1; S[4j + 2 (row / 8) + column]. Rows of S never meet, so warpgroups never wait for each other.
#pragma once
#include <hopper_pairs/layout.cuh>
#include <hopper.cuh>

typedef float State[KEY / 2];

// S <- S Diag(f); f in shared memory at channel_place
ON_DEVICE void scale(State& S, unsigned f, int lane) {
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u) {
        const Four x = read_four(f + lane % 4 * KEY + ((u ^ lane % 4) << 4));
        #pragma unroll
        for (int h = 0; h < 4; h += 2) {
            S[8 * u + h] *= x.x, S[8 * u + h + 1] *= x.y;
            S[8 * u + 4 + h] *= x.z, S[8 * u + 5 + h] *= x.w;
        }
    }
}

// [one-accumulator] [U; O]^T = V^T [T; M]^T + S [-W; Q]^T of both blocks: x[0..7] are U, x[8..15] are O of the first one,
// transposed, x[16..31] of the second.
// V^T from memory as left factor. rows: tokens that exist; what stands in the others may be nan. In flight on return
ON_DEVICE void multiply_values(float (&x)[32], unsigned stage, int group, int warp, int lane, int rows) {
    unsigned v[2][4];
    const int token = lane % 8 + lane / 16 * 8, unit = 2 * warp + lane / 8 % 2;
    const unsigned at = stage + Stage::V + group * TILE + token * 128 + ((unit ^ token % 8) << 4);
    load_tiles_transposed(v[0], at), load_tiles_transposed(v[1], at + BLOCK_ROWS);
    if (rows < PAIR) {
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int first = i / 4 * C + i % 4 / 2 * 8 + 2 * (lane % 4);
            v[i / 4][i % 4] &= (first < rows ? 0xffffu : 0) | (first + 1 < rows ? 0xffff0000u : 0);
        }
    }
    pin(x), wgmma_fence();
    wgmma_keys(x, v[0], describe(stage + Stage::TM, 128, 256, 0), 0);
    wgmma_keys(x, v[1], describe(stage + Stage::TM_SECOND - Stage::CORES, 128, 256, 0), 1);
    wgmma_commit();
}
// the part of S, from registers: an accumulator is laid out like a left factor. In flight on return
ON_DEVICE void multiply_state(const State& S, float (&x)[32], unsigned stage) {
    unsigned s[KEY / 16][4];
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u)
        #pragma unroll
        for (int i = 0; i < 4; ++i) s[u][i] = pack(S[8 * u + 2 * i], S[8 * u + 2 * i + 1]);
    const auto WQ = describe(stage + Units::WQ, 16, 1024, 1);
    pin(x), wgmma_fence();
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u) wgmma_keys(x, s[u], WQ + (u / 4 * (Units::WQ_SLICE / 16) + u % 4 * 2), 1);
    wgmma_commit();
}
// [/one-accumulator]
template <int first> ON_DEVICE void packed(unsigned (&y)[4], const float (&x)[32]) {
    #pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = pack(x[first + 2 * i], x[first + 2 * i + 1]);
}
// [chunk-pair] the first block's residuals reach the second one by P and the state by the write keys; then the second one's.
// In flight on return. o: O of both as bf16, two tokens of a channel in a word
ON_DEVICE void update(State& S, float (&x)[32], unsigned (&o)[2][4], unsigned stage) {
    const auto write_keys = describe(stage + Units::WRITE, TILE, 1024, 1);
    unsigned first[4], second[4];
    wgmma_wait<0>(), pin(x);
    packed<0>(first, x), packed<8>(o[0], x);
    pin(x), pin(S), wgmma_fence();
    wgmma_keys(x, first, describe(stage + Stage::P - Stage::CORES, 128, 256, 0), 1);
    wgmma_commit();
    wgmma_tokens(S, first, write_keys);
    wgmma_commit();
    wgmma_wait<1>(), pin(x);
    packed<16>(second, x);
    wgmma_fence();
    wgmma_tokens(S, second, write_keys + BLOCK_ROWS / 16);
    wgmma_commit();
    packed<24>(o[1], x);
}
// [/chunk-pair]

// O^T to a tile [32][64], swizzled
ON_DEVICE void write_out(const unsigned (&o)[2][4], unsigned tile, int warp, int lane) {
    const int row = lane % 8 + lane / 16 * 8, unit = 2 * warp + lane / 8 % 2;
    const unsigned at = tile + row * 128 + ((unit ^ row % 8) << 4);
    store_tiles_transposed(at, o[0][0], o[0][1], o[0][2], o[0][3]);
    store_tiles_transposed(at + BLOCK_ROWS, o[1][0], o[1][1], o[1][2], o[1][3]);
}
// what exists of a last pair: the copy engine would write over the next sequence
ON_DEVICE void copy_rows(__nv_bfloat16* to, long long row_stride, unsigned tile, int rows, int thread) {
    for (int own = thread; own < 8 * rows; own += 128) {
        const int r = own / 8, u = own % 8;
        *(Four*)(to + r * row_stride + 8 * u) = read_four(tile + r * 128 + ((u ^ r % 8) << 4));
    }
}

// rows of S from or to an array [VALUE, KEY]; slice: which 64 rows
ON_DEVICE void load_state(State& S, const float* from, int slice, int warp, int lane) {
    const long long first = (64 * slice + 16 * warp + lane / 4) * KEY + 2 * (lane % 4);
    #pragma unroll
    for (int j = 0; j < KEY / 8; ++j)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Two x = from ? *(const Two*)(from + first + 8 * h * KEY + 8 * j) : Two{0, 0};
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
