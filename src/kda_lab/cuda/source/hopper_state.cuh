// One block of tokens on the state, by the warpgroup that holds 64 rows of it. S [64, KEY] stays in fp32 in the accumulators of
// the tensor cores for the whole sequence: with g = lane / 4, t = lane % 4 a thread holds rows 16 warp + g and + 8,
// columns 8j + 2t and + 1; S[4j + 2 (row / 8) + column]. Rows of S never meet, so warpgroups never wait for each other.
#pragma once
#include <hopper_layout.cuh>
#include <hopper.cuh>

typedef float State[KEY / 2];

struct Vector { Four x[KEY / 16]; };    // of the channels of a thread: 8j + 2t, + 1 for two j

// slices from .. to - 1 of it
ON_DEVICE void read_slices(Vector& f, int from, int to, unsigned a, int lane) {
    #pragma unroll
    for (int u = from; u < to; ++u) f.x[u] = read_four(a + vector_place(u, lane));
}
ON_DEVICE void scale(State& S, const Vector& f) {
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u)
        #pragma unroll
        for (int h = 0; h < 4; h += 2) {
            S[8 * u + h] *= f.x[u].x, S[8 * u + h + 1] *= f.x[u].y;
            S[8 * u + 4 + h] *= f.x[u].z, S[8 * u + 4 + h + 1] *= f.x[u].w;
        }
}

// units: where the slot is, for descriptions
// [one-accumulator] [U; O]^T = V^T [T; M]^T + S [-W; Q]^T: x[0..7] are U, x[8..15] are O, transposed
// V^T from memory as left factor
struct Values { unsigned x[4]; };
ON_DEVICE Values load_values(unsigned slot, int warp, int lane) {
    Values v;
    const int token = lane % 8 + lane / 16 * 8, unit = 2 * warp + lane / 8 % 2;
    load_tiles_transposed(v.x, slot + Slot::V + token * 128 + ((unit ^ token % 8) << 4));
    return v;
}
// In flight on return
ON_DEVICE void multiply_values(float (&x)[16], const Values& v, unsigned units) {
    pin(x), wgmma_fence();
    wgmma_keys(x, v.x, describe(units, Slot::TM, 512, 128, 0), 0);
    wgmma_commit();
}
// The part of X from the state, from registers: an accumulator is laid out like a left factor. S may decay behind it.
// In flight on return
ON_DEVICE void multiply_state(const State& S, float (&x)[16], unsigned units) {
    const auto WQ = describe(units, Slot::WQ, 16, 1024, 1);
    unsigned s[KEY / 16][4];
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u)
        #pragma unroll
        for (int i = 0; i < 4; ++i) s[u][i] = pack(S[8 * u + 2 * i], S[8 * u + 2 * i + 1]);
    wgmma_fence();
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u) wgmma_keys(x, s[u], WQ.at(u / 4 * 2 * TILE + u % 4 * 32), 1);
    wgmma_commit();
    __syncwarp();    // the compiler would scale S first
}
// S <- S + U^T write, in flight on return; S has decayed while X was on its way. o: O as bf16, two channels of a token in a word
ON_DEVICE void update(State& S, const float (&x)[16], unsigned (&o)[4], unsigned units) {
    unsigned u[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) u[i] = pack(x[2 * i], x[2 * i + 1]);
    pin(S), wgmma_fence();
    wgmma_tokens(S, u, describe(units, Slot::WRITE, TILE, 1024, 1));
    wgmma_commit();
    #pragma unroll
    for (int i = 0; i < 4; ++i) o[i] = pack(x[8 + 2 * i], x[8 + 2 * i + 1]);
}
// [/one-accumulator]

// O^T over V, which this warp has read: a tile [16][64], swizzled
ON_DEVICE void write_out(const unsigned (&o)[4], unsigned slot, int warp, int lane) {
    const int row = lane % 8 + lane / 16 * 8, unit = 2 * warp + lane / 8 % 2;
    store_tiles_transposed(slot + Slot::V + row * 128 + ((unit ^ row % 8) << 4), o[0], o[1], o[2], o[3]);
}
// what exists of a last block: the copy engine would write over the next sequence
ON_DEVICE void copy_rows(__nv_bfloat16* to, long long row_stride, unsigned tile, int rows, int thread) {
    const int r = thread / 8, u = thread % 8;
    if (r < rows) *(Four*)(to + r * row_stride + 8 * u) = read_four(tile + r * 128 + ((u ^ r % 8) << 4));
}

// Two pairs of channels of a thread, 8 apart, and four channels in a row of memory: lanes 2i and 2i + 1 trade a pair, and four lanes
// reach 64 bytes of a row at a time, not 32
ON_DEVICE Two from_neighbour(Two x, int lane) { return {from_lane(x.x, lane ^ 1), from_lane(x.y, lane ^ 1)}; }
ON_DEVICE int neighbours(int lane) { return lane % 2 * 8 + lane % 4 / 2 * 4; }    // the first of the four, in a slice of 16
ON_DEVICE Four to_row(Two a, Two b, int lane) {
    const bool odd = lane % 2;
    const Two x = from_neighbour(odd ? a : b, lane);
    return odd ? Four{x.x, x.y, b.x, b.y} : Four{a.x, a.y, x.x, x.y};
}
ON_DEVICE Four from_row(Four x, int lane) {
    const bool odd = lane % 2;
    const Two y = from_neighbour(odd ? Two{x.x, x.y} : Two{x.z, x.w}, lane);
    return odd ? Four{y.x, y.y, x.z, x.w} : Four{x.x, x.y, y.x, y.y};
}

// 64 rows of S from an array [.., KEY], as rows lie; in_place, when they are needed, brings them to where they belong
ON_DEVICE void load_rows(State& S, const float* from, int warp, int lane) {
    from += (16 * warp + lane / 4) * KEY + neighbours(lane);
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Four x = *(const Four*)(from + 8 * h * KEY + 16 * u);
            S[8 * u + 2 * h] = x.x, S[8 * u + 2 * h + 1] = x.y, S[8 * u + 4 + 2 * h] = x.z, S[8 * u + 4 + 2 * h + 1] = x.w;
        }
}
ON_DEVICE void in_place(State& S, int lane) {
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const Four x = from_row({S[8 * u + 2 * h], S[8 * u + 2 * h + 1], S[8 * u + 4 + 2 * h], S[8 * u + 4 + 2 * h + 1]}, lane);
            S[8 * u + 2 * h] = x.x, S[8 * u + 2 * h + 1] = x.y, S[8 * u + 4 + 2 * h] = x.z, S[8 * u + 4 + 2 * h + 1] = x.w;
        }
}
// without an array 0, or the identity, from row `first` of the head on
ON_DEVICE void fill_state(State& S, bool identity, int first, int warp, int lane) {
    const int row = first + 16 * warp + lane / 4, column = 2 * (lane % 4);
    #pragma unroll
    for (int i = 0; i < KEY / 2; ++i) S[i] = identity && 8 * (i / 4) + column + i % 2 == row + 8 * (i / 2 % 2) ? 1 : 0;
}
ON_DEVICE void store_state(const State& S, float* to, int warp, int lane) {
    to += (16 * warp + lane / 4) * KEY + neighbours(lane);
    #pragma unroll
    for (int u = 0; u < KEY / 16; ++u)
        #pragma unroll
        for (int h = 0; h < 2; ++h)
            *(Four*)(to + 8 * h * KEY + 16 * u) =
                to_row({S[8 * u + 2 * h], S[8 * u + 2 * h + 1]}, {S[8 * u + 4 + 2 * h], S[8 * u + 4 + 2 * h + 1]}, lane);
}
