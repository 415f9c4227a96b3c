// From raw q, k, g of 16 tokens to keys and queries in the block's units and their scores, slice by slice, by a team of warps. Names as in chunk_fused.
// With g = lane / 4, t = lane % 4 a lane holds of a slice (16 tokens, 16 channels) what a left factor of mma.sync wants: words
// i = 2u + h are token 8h + g, channels 8u + 2t and + 1. So scores are products of registers, and only results go to memory.
#pragma once
#include <hopper_layout.cuh>
#include <hopper.cuh>

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float FLOOR = -160;       // 2^-160 is 0 in fp32, and sums of 16 stay exact to 2^-12
constexpr float RANGE = 60;         // exponents in the units of the middle; -5 a token needs 58, fp32 and bf16 end at 127
constexpr int SLICES = KEY / 16;
// slices side by side: one works while the other waits
constexpr int TOGETHER = ABREAST, FOLDED_TOGETHER = !UNBOUNDED && sizeof(GATE_IN) == 2 && SLICES / TEAM >= 4 ? 4 : 2;

// The warps that prepare a block: one, or two with half of the channels each. The first one solves, the last one sees to the decays
struct Team {
    static constexpr int SHARE = SLICES / TEAM;    // slices of a member
    int number, member;
    // members change places in the upper four warps: so those that solve are on all four schedulers
    __device__ explicit Team(int warp) : number(warp / TEAM), member(TEAM == 1 ? 0 : (warp ^ warp / 4) & 1) {}
    __device__ bool first() const { return TEAM == 1 || member == 0; }
    __device__ bool last() const { return TEAM == 1 || member == 1; }
    __device__ int slice() const { return TEAM == 1 ? 0 : member * SHARE; }    // the first one of this member
    // what the others wrote to shared memory before is there
    __device__ void meet() const {
        if (TEAM == 1) __syncwarp();
        else barrier(2 + number, 32 * TEAM);
    }
    // the last one waits for what the others have done
    __device__ void done() const {
        if (TEAM == 1) __syncwarp();
        else if (last()) barrier(2 + TEAMS + number, 32 * TEAM);
        else arrive_at_barrier(2 + TEAMS + number, 32 * TEAM);
    }
    __device__ bool any(bool mine) const { return TEAM == 1 ? any_lane(mine) : barrier_any(2 + number, 32 * TEAM, mine); }
};

// a rate beyond e^80 saturates like e^80, and a rate of 0 would turn the gate of missing tokens into 0 * inf
ON_DEVICE float rate_of(const float* A_log, int head) { return GATE == GIVEN ? 1 : fmaxf(expf(fminf(A_log[head], 80)), 1e-30f); }

struct Gate {              // log2 decay = scale * f(slope x + shift)
    float slope, scale;
    __device__ Gate() {}
    __device__ Gate(const float* A_log, float lower_bound, int head) {
        const float rate = rate_of(A_log, head);
        slope = GATE == BOUNDED ? -rate * LOG2_E : LOG2_E;
        scale = GATE == BOUNDED ? 1 / (lower_bound * LOG2_E) : -rate;
    }
    __device__ float operator()(float x, float shift) const {
        // [gate-bounded] lower_bound sigmoid(rate (x + bias)), in base 2
        if (GATE == BOUNDED) return reciprocal(fmaf(exp2_unit(fmaf(slope, x, shift)), scale, scale));
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
// [KEY] in a team's scratch: what raw gates are shifted by, slope times bias
struct Shifts {
    unsigned at;           // of channel lane / 4
    __device__ Shifts() {}
    __device__ Shifts(const float* dt_bias, const Gate& gate, int head, unsigned scratch, const Team& team, int lane)
        : at(scratch + Scratch::SHIFT + lane / 4 * 4) {
        if (GATE == GIVEN) return;
        __syncwarp();
        for (int d = 16 * team.slice() + lane; d < 16 * (team.slice() + Team::SHARE); d += 32) write(scratch + Scratch::SHIFT + 4 * d, dt_bias ? gate.slope * dt_bias[head * KEY + d] : 0);
        __syncwarp();
    }
    __device__ float of(int j) const { return GATE == GIVEN ? 0 : read_float(at + 32 * j); }    // of channel 8j + lane / 4
};
// raw gate of a token that does not exist: no decay
constexpr float NO_DECAY = GATE == GIVEN ? 0 : -1e38f;

// where row `row` of slice s, 16-byte unit u of its two, stands in a swizzled tile of a slot
ON_DEVICE unsigned in_tile(int row, int u, int s) { return row * 128 + (((s % 4 * 2 + u) ^ row % 8) << 4); }
// what ldmatrix and stmatrix of a whole slice take from a lane
ON_DEVICE unsigned in_keys(int s, int lane) { return Slot::WQ + s / 4 * 2 * TILE + in_tile(lane % 16, lane / 16, s); }
// gates and write keys in the order of a right factor: words i = 2h + u
ON_DEVICE unsigned in_write(int s, int lane) { return Slot::WRITE + s / 4 * TILE + in_tile(lane % 8 + lane / 16 * 8, lane / 8 % 2, s); }
// of a member's first slice: its keys (queries are a TILE further), its gates and then write keys
struct Places {
    unsigned keys, write;
    __device__ Places(unsigned slot, int s, int lane) : keys(slot + in_keys(s, lane)), write(slot + in_write(s, lane)) {}
    // i slices on: four of them share a tile, where one more is 32 bytes, swizzled or not
    __device__ Places next(int i) const {
        Places p = *this;
        p.keys ^= i % 4 * 32, p.write ^= i % 4 * 32;
        if (Team::SHARE > 4) p.keys += i / 4 * 2 * TILE, p.write += i / 4 * TILE;
        return p;
    }
};
// an fp32 gate: slices of 32 channels
ON_DEVICE unsigned gate_at(int token, int channel) {
    return Slot::G + channel / 32 * TILE + token * 128 + ((channel % 32 / 4 ^ token % 8) << 4) + channel % 4 * 4;
}

// tokens from `rows` on do not exist: k = q = 0 and no decay
ON_DEVICE void clear_missing(unsigned slot, int rows, const Team& team, int lane) {
    #pragma unroll 1
    for (int row = rows; row < C; ++row)
        #pragma unroll 1
        for (int i = 2 * lane; i < 16 * Team::SHARE; i += 64) {
            const int channel = 16 * team.slice() + i, s = channel / 16;
            const unsigned word = in_tile(row, channel / 8 % 2, s) + channel % 8 * 2;
            write(slot + Slot::WQ + s / 4 * 2 * TILE + word, 0u);
            write(slot + Slot::WQ + s / 4 * 2 * TILE + TILE + word, 0u);
            if (sizeof(GATE_IN) == 4) write(slot + gate_at(row, channel), NO_DECAY, NO_DECAY);
            else write(slot + Slot::G + s / 4 * TILE + word, pack(NO_DECAY, NO_DECAY));
        }
    __syncwarp();
}

// raw tokens of a slice: keys and queries as left factors; gates of tokens 8h + 2t + e, channel 8u + g, in order of u, h, e
struct Raw {
    float by[2];           // what the gates of channels 8u + g are shifted by
    unsigned k[4], q[4], g[2 * sizeof(GATE_IN)];
    __device__ float gate(int u, int h, int e) const {
        if (sizeof(GATE_IN) == 4) return __uint_as_float(g[4 * u + 2 * h + e]);
        return e ? high(g[2 * h + u]) : low(g[2 * h + u]);
    }
};
ON_DEVICE Raw load_slice(unsigned slot, const Places& at, const Shifts& shifts, int s, int lane) {
    Raw r;
    r.by[0] = shifts.of(2 * s), r.by[1] = shifts.of(2 * s + 1);
    if (sizeof(GATE_IN) == 4) {
        #pragma unroll
        for (int i = 0; i < 8; ++i)
            r.g[i % (2 * sizeof(GATE_IN))] =
                read_word(slot + gate_at(8 * (i / 2 % 2) + 2 * (lane % 4) + i % 2, 16 * s + 8 * (i / 4) + lane / 4));
    } else {
        unsigned g[4];
        load_tiles_transposed(g, at.write);
        #pragma unroll
        for (int i = 0; i < 4; ++i) r.g[i] = g[i];
    }
    load_tiles(r.k, at.keys);
    load_tiles(r.q, at.keys + TILE);
    return r;
}

// Rows of the sums that make exponents out of gates, as left factors. With tokens counted from 0, token 7 is the middle:
// row i > 7 adds tokens 8..i; row i < 7 takes tokens i+1..7 back; row 7, whose exponent is 0, adds tokens 0..7 for the entry
struct Sums {
    unsigned rows[4], ones;
    // zeros: an address of three, read since the assembler would form a zero that it knows anew before each product
    __device__ Sums(int lane, unsigned zeros) {
        const int g = lane / 4, j = 2 * (lane % 4);
        rows[0] = g == 7 ? pack(1, 1) : pack(j > g ? -1 : 0, j + 1 > g ? -1 : 0);
        rows[3] = pack(j <= g ? 1 : 0, j + 1 <= g ? 1 : 0);
        rows[1] = read_word(zeros), rows[2] = read_word(zeros + 4);    // tokens of the other half
        ones = pack(1, 1) | read_word(zeros + 8);
    }
};

// [middle-units] the exponents of a slice in base 2: d[u][h] of token 8h + g, channels 8u + 2t and + 1, and in the lanes of
// tokens 7 and 15 the sums of both halves
// [gate-sums] sums are products with 0 and +-1, gates in two pieces of
// bf16: at most 2^-16 of a gate is lost, the same in every sum
struct Exponents { Two d[2][2], entry[2]; };
ON_DEVICE Exponents sum_gates(const Raw& r, const Sums& sums, const Gate& gate, int lane) {
    Exponents x;
    #pragma unroll
    for (int u = 0; u < 2; ++u) {
        unsigned top[2], rest[2];
        float d[4];
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float a = gate(r.gate(u, h, 0), r.by[u]), b = gate(r.gate(u, h, 1), r.by[u]);
            top[h] = pack(a, b), rest[h] = pack(a - low(top[h]), b - high(top[h]));
        }
        multiply_first(d, sums.rows, top[0], top[1]), multiply(d, sums.rows, rest[0], rest[1]);
        x.d[u][0] = {d[0], d[1]}, x.d[u][1] = {d[2], d[3]};
        x.entry[u] = x.d[u][0];
        if (lane / 4 == 7) x.d[u][0] = {0, 0};
    }
    return x;
}
// [/gate-sums]
// log2 of the decays to the middle and from there to the end, as they come out of a product: four lanes hold them
ON_DEVICE void write_logs(unsigned slot, int s, int u, int lane, Two entry, Two exit) {
    if (lane / 4 == 7) write(slot + Slot::LOGS + (2 * s + u) * 64 + lane % 4 * 16, Four{entry.x, entry.y, exit.x, exit.y});
}
// a lane's part of vectors of channels (vector_place), by the warp that sees to the decays
struct Logs { Four entry, exit; };
ON_DEVICE Logs read_logs(unsigned slot, int lane) {
    if (lane >= KEY / 4) return {};
    const unsigned from = slot + Slot::LOGS + lane / 4 * 128 + lane % 4 * 16;
    const Four x = read_four(from), y = read_four(from + 64);
    return {{x.x, x.y, y.x, y.y}, {x.z, x.w, y.z, y.w}};
}
ON_DEVICE unsigned decayed(unsigned x, Two by) { return pack(low(x) * by.x, high(x) * by.y); }
ON_DEVICE Two exp2_unit(Two x) { return {exp2_unit(x.x), exp2_unit(x.y)}; }
ON_DEVICE Two exp2_of_minus(Two x) { return {exp2_of_minus(x.x), exp2_of_minus(x.y)}; }
// [/middle-units]

// scores and norms of a block: halves of columns; rows as mma.sync leaves them
struct Scores { float A[2][4] = {}, M[2][4] = {}, qq[4] = {}; };    // qq: |q|^2 of rows as mma.sync leaves them, in every column

// [l2-norm] squares of the queries of a slice, each rounded, and their sums as a product with ones. Those of the keys are the diagonal
// of A: there the decays of read and write key cancel
ON_DEVICE void add_norms(Scores& x, const Raw& r, unsigned ones) {
    if (!L2NORM) return;
    const unsigned s[4] = {multiply_pairs(r.q[0], r.q[0]), multiply_pairs(r.q[1], r.q[1]), multiply_pairs(r.q[2], r.q[2]), multiply_pairs(r.q[3], r.q[3])};
    multiply(x.qq, s, ones, ones);
}
// [/l2-norm]

// Queries in the block's units on their way to the fold: in registers where there is room for a member's slices, else in their tile
constexpr bool KEEPS = !UNBOUNDED && Team::SHARE <= 4;
struct Kept { unsigned q[KEEPS ? Team::SHARE : 1][4]; };

// [middle-units] read keys and queries for k and q, write keys for g, in place; logs of entry and exit; a slice's part of the scores
struct Slice { unsigned k[4], q[4], w[4]; };
ON_DEVICE Slice finish_slice(Scores& x, const Raw& r, const Exponents& e, const Sums& sums, float& largest) {
    Slice y;
    add_norms(x, r, sums.ones);
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Two d = e.d[i / 2][i % 2], p = exp2_unit(d);
        // read keys and queries by a rounded decay: one instruction in place of five, for one rounding more
        const unsigned by = pack(p.x, p.y);
        y.k[i] = multiply_pairs(r.k[i], by), y.q[i] = multiply_pairs(r.q[i], by);
        y.w[i % 2 * 2 + i / 2] = decayed(r.k[i], exp2_of_minus(d));
        if (UNBOUNDED) largest = fmaxf(largest, fmaxf(fabsf(d.x), fabsf(d.y)));
    }
    #pragma unroll
    for (int h = 0; h < 2; ++h) multiply(x.A[h], y.k, y.w[2 * h], y.w[2 * h + 1]), multiply(x.M[h], y.q, y.w[2 * h], y.w[2 * h + 1]);
    return y;
}
ON_DEVICE void store_slice(const Slice& y, const Exponents& e, unsigned slot, const Places& at, int s, int lane) {
    store_tiles(at.keys, y.k[0], y.k[1], y.k[2], y.k[3]);
    if (!KEEPS) store_tiles(at.keys + TILE, y.q[0], y.q[1], y.q[2], y.q[3]);
    store_tiles(at.write, y.w[0], y.w[1], y.w[2], y.w[3]);
    #pragma unroll
    for (int u = 0; u < 2; ++u) write_logs(slot, s, u, lane, e.entry[u], e.d[u][1]);
}

// a member's slices of a block. Returns whether an exponent is too large for that. Never one slice alone: one works while the other waits
ON_DEVICE bool middle_units(unsigned slot, const Shifts& shifts, const Sums& sums, const Gate& gate, Scores& x, Kept& kept,
    const Team& team, int lane) {
    float largest = 0;
    const Places first(slot, team.slice(), lane);
    if (KEEPS) {    // a slice is loaded two ahead, its gates are summed one ahead
        Raw r[Team::SHARE];
        Exponents e[Team::SHARE];
        #pragma unroll
        for (int n = 0; n < 2; ++n) r[n] = load_slice(slot, first.next(n), shifts, team.slice() + n, lane);
        e[0] = sum_gates(r[0], sums, gate, lane);
        #pragma unroll
        for (int n = 0; n < Team::SHARE; ++n) {
            if (n + 2 < Team::SHARE) r[n + 2] = load_slice(slot, first.next(n + 2), shifts, team.slice() + n + 2, lane);
            if (n + 1 < Team::SHARE) e[n + 1] = sum_gates(r[n + 1], sums, gate, lane);
            const Slice y = finish_slice(x, r[n], e[n], sums, largest);
            store_slice(y, e[n], slot, first.next(n), team.slice() + n, lane);
            #pragma unroll
            for (int i = 0; i < 4; ++i) kept.q[n][i] = y.q[i];
        }
        return false;
    }
    #pragma unroll 1
    for (int i = 0; i < Team::SHARE; i += TOGETHER) {
        Raw r[TOGETHER];
        Exponents e[TOGETHER];
        Slice y[TOGETHER];
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) r[j] = load_slice(slot, first.next(i + j), shifts, team.slice() + i + j, lane);
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) e[j] = sum_gates(r[j], sums, gate, lane);
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) y[j] = finish_slice(x, r[j], e[j], sums, largest);
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) store_slice(y[j], e[j], slot, first.next(i + j), team.slice() + i + j, lane);
    }
    return UNBOUNDED && team.any(!(largest <= RANGE));
}
// [/middle-units]
