// From raw q, k, g and beta of 16 tokens to the factors that the state needs, by a team of warps. Names as in chunk_fused.
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
// slice i of a member from where its first one stands: four of them share a tile, where one more is 32 bytes, swizzled or not
ON_DEVICE unsigned next_slice(unsigned first, int i, int tile) {
    return Team::SHARE <= 4 ? first ^ i * 32 : (first ^ i % 4 * 32) + i / 4 * tile;
}
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
ON_DEVICE Raw load_slice(unsigned slot, unsigned keys, unsigned write, const Shifts& shifts, int s, int lane) {
    Raw r;
    r.by[0] = shifts.of(2 * s), r.by[1] = shifts.of(2 * s + 1);
    if (sizeof(GATE_IN) == 4) {
        #pragma unroll
        for (int i = 0; i < 8; ++i)
            r.g[i % (2 * sizeof(GATE_IN))] =
                read_word(slot + gate_at(8 * (i / 2 % 2) + 2 * (lane % 4) + i % 2, 16 * s + 8 * (i / 4) + lane / 4));
    } else {
        unsigned g[4];
        load_tiles_transposed(g, write);
        #pragma unroll
        for (int i = 0; i < 4; ++i) r.g[i] = g[i];
    }
    load_tiles(r.k, keys);
    load_tiles(r.q, keys + TILE);
    return r;
}

// Rows of the sums that make exponents out of gates, as left factors. With tokens counted from 0, token 7 is the middle:
// row i > 7 adds tokens 8..i; row i < 7 takes tokens i+1..7 back; row 7, whose exponent is 0, adds tokens 0..7 for the entry
struct Sums {
    unsigned rows[4];
    __device__ explicit Sums(int lane) {
        const int g = lane / 4, j = 2 * (lane % 4);
        rows[0] = g == 7 ? pack(1, 1) : pack(j > g ? -1 : 0, j + 1 > g ? -1 : 0);
        rows[3] = pack(j <= g ? 1 : 0, j + 1 <= g ? 1 : 0);
        rows[1] = rows[2] = 0;    // tokens of the other half
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
// log2 of the decays to the middle and from there to the end: four lanes write two channels each of both halves of a slice
ON_DEVICE void write_vectors(unsigned slot, int s, int lane, Two entry0, Two entry1, Two exit0, Two exit1) {
    const unsigned to = slot + Slot::SCALE + vector_place(s, lane);
    if (lane / 4 != 7) return;
    write(to, Four{entry0.x, entry0.y, entry1.x, entry1.y});
    write(to + Slot::EXIT - Slot::SCALE, Four{exit0.x, exit0.y, exit1.x, exit1.y});
}
ON_DEVICE unsigned decayed(unsigned x, Two by) { return pack(low(x) * by.x, high(x) * by.y); }
ON_DEVICE Two exp2_unit(Two x) { return {exp2_unit(x.x), exp2_unit(x.y)}; }
ON_DEVICE Two exp2_of_minus(Two x) { return {exp2_of_minus(x.x), exp2_of_minus(x.y)}; }
// [/middle-units]

// scores and norms of a block: halves of columns; rows as mma.sync leaves them
struct Scores { float A[2][4] = {}, M[2][4] = {}, qq[4] = {}; };    // qq: |q|^2 of rows as mma.sync leaves them, in every column

// [l2-norm] squares of the queries of a slice, each rounded, and their sums as a product with ones. Those of the keys are the diagonal
// of A: there the decays of read and write key cancel
ON_DEVICE void add_norms(Scores& x, const Raw& r) {
    if (!L2NORM) return;
    constexpr unsigned ONES = 0x3f803f80;
    const unsigned s[4] = {multiply_pairs(r.q[0], r.q[0]), multiply_pairs(r.q[1], r.q[1]), multiply_pairs(r.q[2], r.q[2]), multiply_pairs(r.q[3], r.q[3])};
    multiply(x.qq, s, ONES, ONES);
}
// [/l2-norm]

// [middle-units] a member's slices of a block: read keys and queries for k and q, write keys for g, in place; logs of entry and exit;
// the scores. Returns whether an exponent is too large for that. Two slices side by side: one works while the other waits
ON_DEVICE bool middle_units(unsigned slot, const Shifts& shifts, const Sums& sums, const Gate& gate, Scores& x, const Team& team, int lane) {
    float largest = 0;
    const unsigned keys = slot + in_keys(team.slice(), lane), write = slot + in_write(team.slice(), lane);
    #pragma unroll 1
    for (int i = 0; i < Team::SHARE; i += TOGETHER) {
        const int s = team.slice() + i;
        unsigned at_keys[TOGETHER], at_write[TOGETHER];
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) at_keys[j] = next_slice(keys, i + j, 2 * TILE), at_write[j] = next_slice(write, i + j, TILE);
        Raw r[TOGETHER];
        Exponents e[TOGETHER];
        unsigned k[TOGETHER][4], q[TOGETHER][4], w[TOGETHER][4];
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) r[j] = load_slice(slot, at_keys[j], at_write[j], shifts, s + j, lane);
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) e[j] = sum_gates(r[j], sums, gate, lane);
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) {
            add_norms(x, r[j]);
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Two d = e[j].d[i / 2][i % 2], y = exp2_unit(d);
                // read keys and queries by a rounded decay: one instruction in place of five, for one rounding more
                const unsigned by = pack(y.x, y.y);
                k[j][i] = multiply_pairs(r[j].k[i], by), q[j][i] = multiply_pairs(r[j].q[i], by);
                w[j][i % 2 * 2 + i / 2] = decayed(r[j].k[i], exp2_of_minus(d));
                if (UNBOUNDED) largest = fmaxf(largest, fmaxf(fabsf(d.x), fabsf(d.y)));
            }
            #pragma unroll
            for (int h = 0; h < 2; ++h)
                multiply(x.A[h], k[j], w[j][2 * h], w[j][2 * h + 1]), multiply(x.M[h], q[j], w[j][2 * h], w[j][2 * h + 1]);
        }
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) {
            store_tiles(at_keys[j], k[j][0], k[j][1], k[j][2], k[j][3]);
            store_tiles(at_keys[j] + TILE, q[j][0], q[j][1], q[j][2], q[j][3]);
            store_tiles(at_write[j], w[j][0], w[j][1], w[j][2], w[j][3]);
            write_vectors(slot, s + j, lane, e[j].entry[0], e[j].entry[1], e[j].d[0][1], e[j].d[1][1]);
        }
    }
    return UNBOUNDED && team.any(!(largest <= RANGE));
}
// [/middle-units]

// A member's share of the scores, where store_scores will write the whole: left there by the last one, added by the first one
ON_DEVICE void leave_scores(const Scores& x, unsigned scratch, int lane) {
    const unsigned A = scratch + Scratch::A + lane / 4 * 64 + lane % 4 * 8, M = scratch + Scratch::M + lane / 4 * ROW + lane % 4 * 8;
    write(A, x.A[0][0], x.A[0][1]), write(A + 512, x.A[0][2], x.A[0][3]), write(A + 512 + 32, x.A[1][2], x.A[1][3]);
    write(M, x.M[0][0], x.M[0][1]), write(M + 8 * ROW, x.M[0][2], x.M[0][3]), write(M + 8 * ROW + 32, x.M[1][2], x.M[1][3]);
    if (L2NORM && lane % 4 == 0) {
        const unsigned qq = scratch + Scratch::SQUARES + lane;
        write(qq, x.qq[0]), write(qq + 32, x.qq[2]);
    }
}
ON_DEVICE void add_two(float (&x)[4], int i, unsigned a) {
    const Two y = read_two(a);
    x[i] += y.x, x[i + 1] += y.y;
}
ON_DEVICE void add_scores(Scores& x, unsigned scratch, int lane) {
    const unsigned A = scratch + Scratch::A + lane / 4 * 64 + lane % 4 * 8, M = scratch + Scratch::M + lane / 4 * ROW + lane % 4 * 8;
    add_two(x.A[0], 0, A), add_two(x.A[0], 2, A + 512), add_two(x.A[1], 2, A + 512 + 32);
    add_two(x.M[0], 0, M), add_two(x.M[0], 2, M + 8 * ROW), add_two(x.M[1], 2, M + 8 * ROW + 32);
    if (L2NORM) {
        const unsigned qq = scratch + Scratch::SQUARES + lane / 4 * 4;
        x.qq[0] += read_float(qq), x.qq[2] += read_float(qq + 32);
    }
}

// Scores and norms to memory, for the solve. beta: in lanes 0..15, of their token
ON_DEVICE void store_scores(const Scores& x, unsigned scratch, float beta, float scale, int lane) {
    const int r = lane / 4, c = 2 * (lane % 4);
    const unsigned A = scratch + Scratch::A + r * 64 + c * 4, M = scratch + Scratch::M + r * ROW + c * 4;
    write(A, x.A[0][0], x.A[0][1]), write(A + 512, x.A[0][2], x.A[0][3]), write(A + 512 + 32, x.A[1][2], x.A[1][3]);
    // the mask selects: what lies above the diagonal may be inf
    write(M, c <= r ? x.M[0][0] : 0, c < r ? x.M[0][1] : 0), write(M + 32, 0.f, 0.f);
    write(M + 8 * ROW, x.M[0][2], x.M[0][3]), write(M + 8 * ROW + 32, c <= r ? x.M[1][2] : 0, c < r ? x.M[1][3] : 0);
    // [l2-norm] of rows r and r + 8
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float kk = r % 2 ? x.A[h][2 * h + 1] : x.A[h][2 * h], qq = x.qq[2 * h], b = from_lane(beta, r + 8 * h);
        const float i = L2NORM ? inverse_root(kk + 1e-6f) : 1, j = L2NORM ? inverse_root(qq + 1e-6f) : 1;
        if (c == r - r % 2) {    // the lane of the diagonal
            const unsigned to = scratch + Scratch::VECTORS + 4 * (r + 8 * h);
            write(to, b * i * i), write(to + 64, b * i), write(to + 128, scale * j);
        }
    }
    // [/l2-norm]
    __syncwarp();
}

// [row-solve] lane r owns row r of 32: y_l final, then y_j -= c_l y_l A_lj for j < l. fp32; no power series, so nearly equal
// keys cost no digits. Stores z = c y for [-W; Q] and -b y for [T; M]. start: where the row begins from, of the identity or of M
ON_DEVICE void row_solve(unsigned slot, unsigned scratch, unsigned start, int lane) {
    const unsigned vectors = scratch + Scratch::VECTORS;
    float y[16];
    const float factor = read_float(vectors + 128 + lane % 16 * 4), by = lane < 16 ? -1 : -factor;
    #pragma unroll
    for (int j = 0; j < 16; j += 4) {
        const Four x = read_four(start + j * 4);
        y[j] = by * x.x, y[j + 1] = by * x.y, y[j + 2] = by * x.z, y[j + 3] = by * x.w;
    }
    unsigned z[8], t[8];
    Four next[4];    // the next row of A, loaded a step ahead
    #pragma unroll
    for (int j = 0; j < 4; ++j) next[j] = read_four(scratch + Scratch::A + 15 * 64 + j * 16);
    #pragma unroll
    for (int l0 = 14; l0 >= 0; l0 -= 2) {
        const Two c = read_two(vectors + l0 * 4), b = read_two(vectors + 64 + l0 * 4);
        float u[2];
        #pragma unroll
        for (int h = 1; h >= 0; --h) {
            const int l = l0 + h;
            Four now[4];
            #pragma unroll
            for (int j = 0; j < 4; ++j) now[j] = next[j];
            #pragma unroll
            for (int j = 0; j < 4; ++j)
                if (4 * j < l - 1) next[j] = read_four(scratch + Scratch::A + (l - 1) * 64 + j * 16);
            u[h] = (h ? c.y : c.x) * y[l];
            const float* A = &now[0].x;
            #pragma unroll
            for (int j = l - 1; j >= 0; --j) y[j] = fmaf(-u[h], A[j], y[j]);
        }
        z[l0 / 2] = pack(u[0], u[1]);
        t[l0 / 2] = pack(-b.x * y[l0], -b.y * y[l0 + 1]);
    }
    __syncwarp();        // nobody reads A any more
    #pragma unroll
    for (int s = 0; s < 2; ++s) {
        write(scratch + Scratch::Z + s * 512 + lane * 16, z[4 * s], z[4 * s + 1], z[4 * s + 2], z[4 * s + 3]);
        write(slot + Slot::TM + s * 512 + lane * 16, t[4 * s], t[4 * s + 1], t[4 * s + 2], t[4 * s + 3]);
    }
}
// [/row-solve]

// [folded-decays] S is in the units of the middle of the block before. What decays it on the way to this block's middle stands in
// the columns of [-W; Q], and S itself decays behind the product. before: this lane's part of that block's EXIT, 0 where there is
// none; edges: read at the block's start
ON_DEVICE Four exp2_unit(Four x) { return {exp2_unit(x.x), exp2_unit(x.y), exp2_unit(x.z), exp2_unit(x.w)}; }
ON_DEVICE void decays(unsigned slot, unsigned scratch, Four before, bool edges, int lane) {
    if (lane < KEY / 4) {
        const unsigned own = slot + Slot::SCALE + 16 * lane;
        const Four x = read_four(own);
        const Four both = exp2_unit(Four{x.x + before.x, x.y + before.y, x.z + before.z, x.w + before.w});
        write(own, both);
        if (UNBOUNDED) write(scratch + Scratch::FOLD + 16 * lane, edges ? exp2_unit(before) : both);
    }
    __syncwarp();
}
// [/folded-decays]

// [folded-norms] [-W; Q] = [0; q_factor Q] + z read, in place of read keys and queries
ON_DEVICE void fold(unsigned slot, unsigned scratch, const Team& team, int lane) {
    unsigned top[4], bottom[4];
    load_tiles(top, scratch + Scratch::Z + lane / 16 * 512 + lane % 16 * 16);
    load_tiles(bottom, scratch + Scratch::Z + lane / 16 * 512 + (lane % 16 + 16) * 16);
    const unsigned factors = scratch + Scratch::VECTORS + 128 + lane / 4 * 4;
    const float f = read_float(factors), g = read_float(factors + 32);
    const unsigned keys = slot + in_keys(team.slice(), lane);
    #pragma unroll 1
    for (int i = 0; i < Team::SHARE; i += FOLDED_TOGETHER) {
        const int s = team.slice() + i;
        unsigned at_keys[FOLDED_TOGETHER];
        #pragma unroll
        for (int j = 0; j < FOLDED_TOGETHER; ++j) at_keys[j] = next_slice(keys, i + j, 2 * TILE);
        unsigned read[FOLDED_TOGETHER][4], q[FOLDED_TOGETHER][4], W[FOLDED_TOGETHER][4], Q[FOLDED_TOGETHER][4];
        Four by[FOLDED_TOGETHER];
        #pragma unroll
        for (int j = 0; j < FOLDED_TOGETHER; ++j) {
            load_tiles_transposed(read[j], at_keys[j]);
            load_tiles(q[j], at_keys[j] + TILE);
            by[j] = read_four((UNBOUNDED ? scratch + Scratch::FOLD : slot + Slot::SCALE) + vector_place(s + j, lane));
        }
        #pragma unroll
        for (int j = 0; j < FOLDED_TOGETHER; ++j)
            #pragma unroll
            for (int u = 0; u < 2; ++u) {
                const unsigned upper = q[j][2 * u], lower = q[j][2 * u + 1];
                float x[4], y[4] = {low(upper) * f, high(upper) * f, low(lower) * g, high(lower) * g};
                multiply_first(x, top, read[j][2 * u], read[j][2 * u + 1]);
                multiply(y, bottom, read[j][2 * u], read[j][2 * u + 1]);
                const Two b = u ? Two{by[j].z, by[j].w} : Two{by[j].x, by[j].y};
                W[j][2 * u] = pack(x[0] * b.x, x[1] * b.y), W[j][2 * u + 1] = pack(x[2] * b.x, x[3] * b.y);
                Q[j][2 * u] = pack(y[0] * b.x, y[1] * b.y), Q[j][2 * u + 1] = pack(y[2] * b.x, y[3] * b.y);
            }
        #pragma unroll
        for (int j = 0; j < FOLDED_TOGETHER; ++j) {
            store_tiles(at_keys[j], W[j][0], W[j][1], W[j][2], W[j][3]);
            store_tiles(at_keys[j] + TILE, Q[j][0], Q[j][1], Q[j][2], Q[j][3]);
        }
    }
}
// [/folded-norms]
