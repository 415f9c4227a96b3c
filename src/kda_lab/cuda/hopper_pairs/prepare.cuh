// From raw q, k, g and beta of 16 tokens to the factors that the state needs, by one warpgroup. Names as in chunk_fused.
#pragma once
#include <hopper_pairs/layout.cuh>
#include <hopper.cuh>

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float FLOOR = -160;       // 2^-160 is 0 in fp32, and sums of 16 stay exact to 2^-12
constexpr float RANGE = 60;         // exponents in the units of the middle; -5 a token needs 58, fp32 and bf16 end at 127

// what a thread owns of a block: 8 tokens of two neighbouring channels
struct Own {
    int half, slice, channel;    // tokens 8 half .. 8 half + 7; channels channel, channel + 1
    unsigned row;                // offset of its first token in a block of 16 rows of 128 bytes
    __device__ Own(int warp, int lane)
        : half(warp / 2), slice(warp % 2), channel(64 * (warp % 2) + 2 * lane),
          row(half * (BLOCK_ROWS / 2) + lane / 4 * 16 + lane % 4 * 4) {}
    __device__ bool some() const { return channel < KEY; }
    // of token i among raw tokens and write keys; among read keys and, Q_ROWS further, queries. The lowest bits first: what is
    // added to them is a constant in the instruction
    __device__ unsigned tile(int block, int i) const { return (row ^ i * 0x90) + slice * TILE + block * BLOCK_ROWS; }
    __device__ unsigned read(int block, int i) const {
        return (row ^ i * 0x90) + slice * Units::WQ_SLICE + block * Units::WQ_BLOCK;
    }
};

struct Gate {              // log2 decay = scale * f(slope x + shift)
    float slope, shift_x, shift_y, scale;
    __device__ Gate(const float* A_log, const float* dt_bias, float lower_bound, int head, const Own& own) {
        // a rate beyond e^80 saturates like e^80, and a rate of 0 would turn the gate of missing tokens into 0 * inf
        const float rate = GATE == GIVEN ? 1 : fmaxf(expf(fminf(A_log[head], 80)), 1e-30f);
        const bool biased = GATE != GIVEN && dt_bias && own.some();
        const float x = biased ? dt_bias[head * KEY + own.channel] : 0, y = biased ? dt_bias[head * KEY + own.channel + 1] : 0;
        slope = GATE == BOUNDED ? -rate * LOG2_E : LOG2_E;
        shift_x = slope * x, shift_y = slope * y;
        scale = GATE == BOUNDED ? lower_bound * LOG2_E : -rate;
    }
    __device__ float operator()(float x, float shift) const {
        // [gate-bounded] lower_bound sigmoid(rate (x + bias)), in base 2
        if (GATE == BOUNDED) return scale * reciprocal(1 + exp2_unit(fmaf(slope, x, shift)));
        // [/gate-bounded]
        x = GATE == GIVEN ? slope * x : fmaf(slope, x, shift);
        if (GATE == SOFTPLUS) {
            // [gate-softplus] -rate softplus(x + bias): max(y, 0) + log2(1 + 2^-|y|), the logarithm near 1 by its series
            const float t = exp2_unit(-fabsf(x));
            const float l = t < 0.015625f ? LOG2_E * t * (1 - t * (0.5f - t * 0.33333333f)) : log2_unit(1 + t);
            x = scale * (fmaxf(x, 0) + l);
            // [/gate-softplus]
        }
        return x < FLOOR ? FLOOR : x;    // not fmaxf: a nan stays a nan
    }
};
// raw gate of a token that does not exist: no decay
constexpr float NO_DECAY = GATE == GIVEN ? 0 : -1e38f;

ON_DEVICE unsigned gate_at(const Own& own, int block, int i) {
    return Input::G + (sizeof(GATE_IN) == 4 ? ((16 * block + 8 * own.half + i) * KEY + own.channel) * 4 : own.tile(block, i));
}
ON_DEVICE Two raw_gates(unsigned in, const Own& own, int block, int i) {
    if (sizeof(GATE_IN) == 4) return read_two(in + gate_at(own, block, i));
    const unsigned x = read_word(in + gate_at(own, block, i));
    return {low(x), high(x)};
}

// tokens from `rows` of a block on do not exist: k = q = 0 and no decay. A thread clears what it owns
ON_DEVICE void clear_missing(unsigned in, const Own& own, int block, int rows) {
    for (int i = 0; i < 8; ++i) {
        if (8 * own.half + i < rows) continue;
        write(in + Input::Q + own.tile(block, i), 0u);
        write(in + Input::K + own.tile(block, i), 0u);
        if (sizeof(GATE_IN) == 4) write(in + gate_at(own, block, i), NO_DECAY, NO_DECAY);
        else write(in + gate_at(own, block, i), pack(NO_DECAY, NO_DECAY));
    }
}

// [middle-units] d_i = G_i - G_8 in base 2: read keys k 2^d, queries q 2^d, write keys k 2^-d, and the decay of a half.
// A thread sums away from the middle, so the halves need nothing of each other. decay: where it goes, [KEY].
// Returns whether d is too large for that
template <int HALF> ON_DEVICE bool middle_units(unsigned in, unsigned units, unsigned decay, const Own& own, int block,
                                                const Gate& gate) {
    Two d[8];
    unsigned k[8], q[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) d[i] = raw_gates(in, own, block, i);
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        k[i] = read_word(in + Input::K + own.tile(block, i));
        q[i] = read_word(in + Input::Q + own.tile(block, i));
    }
    #pragma unroll
    for (int i = 0; i < 8; ++i) d[i] = {gate(d[i].x, gate.shift_x), gate(d[i].y, gate.shift_y)};
    Two sum = {0, 0};
    float largest = 0;
    #pragma unroll
    for (int s = 0; s < 8; ++s) {
        const int i = HALF ? s : 7 - s;
        const Two g = d[i];
        if (HALF) {         // tokens 9..i, all decays
            sum = {sum.x + g.x, sum.y + g.y};
            d[i] = sum;
        } else {            // tokens i+1..8, taken back
            d[i] = {-sum.x, -sum.y};
            sum = {sum.x + g.x, sum.y + g.y};
        }
        if (UNBOUNDED) largest = fmaxf(largest, fmaxf(fabsf(d[i].x), fabsf(d[i].y)));
    }
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        const unsigned read = units + own.read(block, i);
        const float x = exp2_unit(d[i].x), y = exp2_unit(d[i].y), back_x = exp2_unit(-d[i].x), back_y = exp2_unit(-d[i].y);
        write(read, pack(low(k[i]) * x, high(k[i]) * y));
        write(read + Units::Q_ROWS, pack(low(q[i]) * x, high(q[i]) * y));
        write(units + Units::WRITE + own.tile(block, i), pack(low(k[i]) * back_x, high(k[i]) * back_y));
    }
    write(decay + 4 * own.channel, exp2_unit(sum.x), exp2_unit(sum.y));
    return largest > RANGE;
}
// [/middle-units]

