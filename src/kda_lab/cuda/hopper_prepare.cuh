// From raw q, k, g and beta of 16 tokens to the factors that the state needs, by one warp. Names as in chunk_fused.
// With g = lane / 4, t = lane % 4 a lane holds of a slice (16 tokens, 16 channels) what a left factor of mma.sync wants: words
// i = 2u + h are token 8h + g, channels 8u + 2t and + 1. So scores are products of registers, and only results go to memory.
#pragma once
#include <hopper_layout.cuh>
#include <hopper.cuh>

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float FLOOR = -160;       // 2^-160 is 0 in fp32, and sums of 16 stay exact to 2^-12
constexpr float RANGE = 60;         // exponents in the units of the middle; -5 a token needs 58, fp32 and bf16 end at 127
constexpr int SLICES = KEY / 16;
// side by side: one works while the other waits. Unbounded gates need more registers than that leaves
constexpr int TOGETHER = UNBOUNDED ? 1 : 2, FOLDED_TOGETHER = UNBOUNDED || sizeof(GATE_IN) == 4 ? 2 : 4;

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
// [KEY] in a warp's scratch: what raw gates are shifted by, slope times bias
struct Shifts {
    unsigned at;           // of channel lane / 4
    __device__ Shifts() {}
    __device__ Shifts(const float* dt_bias, const Gate& gate, int head, unsigned scratch, int lane)
        : at(scratch + Scratch::SHIFT + lane / 4 * 4) {
        if (GATE == GIVEN) return;
        __syncwarp();
        for (int d = lane; d < KEY; d += 32) write(scratch + Scratch::SHIFT + 4 * d, dt_bias ? gate.slope * dt_bias[head * KEY + d] : 0);
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
// an fp32 gate: slices of 32 channels
ON_DEVICE unsigned gate_at(int token, int channel) {
    return Slot::G + channel / 32 * TILE + token * 128 + ((channel % 32 / 4 ^ token % 8) << 4) + channel % 4 * 4;
}

// tokens from `rows` on do not exist: k = q = 0 and no decay
ON_DEVICE void clear_missing(unsigned slot, int rows, int lane) {
    for (int i = lane; i < (C - rows) * KEY / 2; i += 32) {
        const int row = rows + i / (KEY / 2), channel = 2 * (i % (KEY / 2)), s = channel / 16;
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
ON_DEVICE Raw load_slice(unsigned slot, const Shifts& shifts, int s, int lane) {
    Raw r;
    r.by[0] = shifts.of(2 * s), r.by[1] = shifts.of(2 * s + 1);
    if (sizeof(GATE_IN) == 4) {
        #pragma unroll
        for (int i = 0; i < 8; ++i)
            r.g[i % (2 * sizeof(GATE_IN))] =
                read_word(slot + gate_at(8 * (i / 2 % 2) + 2 * (lane % 4) + i % 2, 16 * s + 8 * (i / 4) + lane / 4));
    } else {
        unsigned g[4];
        load_tiles_transposed(g, slot + in_write(s, lane));
        #pragma unroll
        for (int i = 0; i < 4; ++i) r.g[i] = g[i];
    }
    load_tiles(r.k, slot + in_keys(s, lane));
    load_tiles(r.q, slot + in_keys(s, lane) + TILE);
    return r;
}

// Rows of the sums that make exponents out of gates, as left factors. With tokens counted from 0, token 7 is the middle:
// row i > 7 adds tokens 8..i; row i < 7 takes tokens i+1..7 back; row 7, whose exponent is 0, adds tokens 0..7 for the entry
struct Sums {
    unsigned rows[4];      // 0..7 for tokens 0..7, 8..15 for tokens 8..15: of each product one half counts. Twice, for both pieces
    __device__ explicit Sums(int lane) {
        const int g = lane / 4, j = 2 * (lane % 4);
        rows[0] = rows[2] = g == 7 ? pack(1, 1) : pack(j > g ? -1 : 0, j + 1 > g ? -1 : 0);
        rows[1] = rows[3] = pack(j <= g ? 1 : 0, j + 1 <= g ? 1 : 0);
    }
};

// [middle-units] the exponents of a slice in base 2: d[u][h] of token 8h + g, channels 8u + 2t and + 1, and in the lanes of
// tokens 7 and 15 the sums of both halves
// [gate-sums] sums are products with 0 and 1, gates in two pieces of bf16: at most 2^-16 of a gate is lost, the same in every sum
struct Exponents { Two d[2][2], entry[2]; };
ON_DEVICE Exponents sum_gates(const Raw& r, const Sums& sums, const Gate& gate, int lane) {
    Exponents x;
    #pragma unroll
    for (int u = 0; u < 2; ++u) {
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float a = gate(r.gate(u, h, 0), r.by[u]), b = gate(r.gate(u, h, 1), r.by[u]);
            const unsigned top = pack(a, b), rest = pack(a - low(top), b - high(top));
            float d[4];
            multiply_first(d, sums.rows, top, rest);
            x.d[u][h] = {d[2 * h], d[2 * h + 1]};
        }
        x.entry[u] = x.d[u][0];
        if (lane / 4 == 7) x.d[u][0] = {0, 0};
    }
    return x;
}
// [/gate-sums]
// one lane of four writes a vector of the slot: two channels of both halves of a slice
ON_DEVICE void write_vector(unsigned to, int s, int lane, Two x, Two y) {
    if (lane / 4 == 7) write(to + vector_place(s, lane), Four{x.x, x.y, y.x, y.y});
}
ON_DEVICE unsigned decayed(unsigned x, Two by) { return pack(low(x) * by.x, high(x) * by.y); }
ON_DEVICE Two exp2_unit(Two x) { return {exp2_unit(x.x), exp2_unit(x.y)}; }
ON_DEVICE Two exp2_of_minus(Two x) { return {exp2_of_minus(x.x), exp2_of_minus(x.y)}; }
// [/middle-units]

// scores and norms of a block: halves of columns; rows as mma.sync leaves them
struct Scores { float A[2][4] = {}, M[2][4] = {}, qq[2] = {}; };    // qq: this lane's part of |q|^2, by halves of tokens

// [l2-norm] squares of the queries of a slice: a lane sees a quarter of the channels. Those of the keys are the diagonal of A: there
// the decays of read and write key cancel
ON_DEVICE void add_norms(Scores& x, const Raw& r) {
    #pragma unroll
    for (int i = 0; i < 4 * L2NORM; ++i)
        x.qq[i % 2] = fmaf(low(r.q[i]), low(r.q[i]), fmaf(high(r.q[i]), high(r.q[i]), x.qq[i % 2]));
}
// [/l2-norm]

// [middle-units] all slices of a block: read keys and queries for k and q, write keys for g, in place; logs of entry and exit;
// the scores. Returns whether an exponent is too large for that. Two slices side by side: one works while the other waits
ON_DEVICE bool middle_units(unsigned slot, const Shifts& shifts, const Sums& sums, const Gate& gate, Scores& x, int lane) {
    float largest = 0;
    #pragma unroll 1
    for (int s = 0; s < SLICES; s += TOGETHER) {
        Raw r[TOGETHER];
        Exponents e[TOGETHER];
        unsigned k[TOGETHER][4], q[TOGETHER][4], w[TOGETHER][4];
        #pragma unroll
        for (int j = 0; j < TOGETHER; ++j) r[j] = load_slice(slot, shifts, s + j, lane);
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
            store_tiles(slot + in_keys(s + j, lane), k[j][0], k[j][1], k[j][2], k[j][3]);
            store_tiles(slot + in_keys(s + j, lane) + TILE, q[j][0], q[j][1], q[j][2], q[j][3]);
            store_tiles(slot + in_write(s + j, lane), w[j][0], w[j][1], w[j][2], w[j][3]);
            write_vector(slot + Slot::SCALE, s + j, lane, e[j].entry[0], e[j].entry[1]);
            write_vector(slot + Slot::EXIT, s + j, lane, e[j].d[0][1], e[j].d[1][1]);
        }
    }
    return UNBOUNDED && any_lane(!(largest <= RANGE));
}
// [/middle-units]

// over lanes 4g .. 4g + 3
ON_DEVICE float sum_of_four(float x, int lane) { return x += from_lane(x, lane ^ 1), x + from_lane(x, lane ^ 2); }

// Scores and norms to memory, for the solve. beta: in lanes 0..15, of their token
ON_DEVICE void store_scores(const Scores& x, unsigned slot, unsigned scratch, float beta, float scale, int lane) {
    const int r = lane / 4, c = 2 * (lane % 4);
    const unsigned A = scratch + Scratch::A + r * 64 + c * 4, M = slot + Slot::TM + r * 64 + c * 4;
    write(A, x.A[0][0], x.A[0][1]), write(A + 512, x.A[0][2], x.A[0][3]), write(A + 512 + 32, x.A[1][2], x.A[1][3]);
    // the mask selects: what lies above the diagonal may be inf
    write(M, c <= r ? x.M[0][0] : 0, c < r ? x.M[0][1] : 0), write(M + 32, 0.f, 0.f);
    write(M + 512, x.M[0][2], x.M[0][3]), write(M + 512 + 32, c <= r ? x.M[1][2] : 0, c < r ? x.M[1][3] : 0);
    // [l2-norm] of rows r and r + 8
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float kk = r % 2 ? x.A[h][2 * h + 1] : x.A[h][2 * h], qq = sum_of_four(x.qq[h], lane), b = from_lane(beta, r + 8 * h);
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
// keys cost no digits. Stores z = c y for [-W; Q] and -b y for [T; M]
ON_DEVICE void row_solve(unsigned slot, unsigned scratch, int lane) {
    const unsigned vectors = scratch + Scratch::VECTORS;
    float y[16];
    const float factor = read_float(vectors + 128 + lane % 16 * 4);
    #pragma unroll
    for (int j = 0; j < 16; j += 4) {
        const Four m = read_four(slot + Slot::TM + lane % 16 * 64 + j * 4);
        const float row[4] = {m.x, m.y, m.z, m.w};
        #pragma unroll
        for (int i = 0; i < 4; ++i) y[j + i] = lane >= 16 ? -factor * row[i] : j + i == lane ? -1 : 0;
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
    __syncwarp();        // nobody reads A and M any more
    #pragma unroll
    for (int s = 0; s < 2; ++s) {
        write(scratch + Scratch::Z + s * 512 + lane * 16, z[4 * s], z[4 * s + 1], z[4 * s + 2], z[4 * s + 3]);
        write(slot + Slot::TM + s * 512 + lane * 16, t[4 * s], t[4 * s + 1], t[4 * s + 2], t[4 * s + 3]);
    }
    __syncwarp();
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
ON_DEVICE void fold(unsigned slot, unsigned scratch, int lane) {
    unsigned top[4], bottom[4];
    load_tiles(top, scratch + Scratch::Z + lane / 16 * 512 + lane % 16 * 16);
    load_tiles(bottom, scratch + Scratch::Z + lane / 16 * 512 + (lane % 16 + 16) * 16);
    const unsigned factors = scratch + Scratch::VECTORS + 128 + lane / 4 * 4;
    const float f = read_float(factors), g = read_float(factors + 32);
    #pragma unroll 1
    for (int s = 0; s < SLICES; s += FOLDED_TOGETHER) {
        unsigned read[FOLDED_TOGETHER][4], q[FOLDED_TOGETHER][4], W[FOLDED_TOGETHER][4], Q[FOLDED_TOGETHER][4];
        Four by[FOLDED_TOGETHER];
        #pragma unroll
        for (int j = 0; j < FOLDED_TOGETHER; ++j) {
            load_tiles_transposed(read[j], slot + in_keys(s + j, lane));
            load_tiles(q[j], slot + in_keys(s + j, lane) + TILE);
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
            store_tiles(slot + in_keys(s + j, lane), W[j][0], W[j][1], W[j][2], W[j][3]);
            store_tiles(slot + in_keys(s + j, lane) + TILE, Q[j][0], Q[j][1], Q[j][2], Q[j][3]);
        }
    }
}
// [/folded-norms]
