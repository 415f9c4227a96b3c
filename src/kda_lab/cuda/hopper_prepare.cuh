// From raw q, k, g and beta of 16 tokens to the factors that the state needs, by one warpgroup. Names as in chunk_fused.
#pragma once
#include <hopper_layout.cuh>
#include <hopper.cuh>

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float FLOOR = -160;       // 2^-160 is 0 in fp32, and sums of 16 stay exact to 2^-12
constexpr float RANGE = 60;         // exponents in the units of the middle; -5 a token needs 58, fp32 and bf16 end at 127

// what a thread owns of a block: 8 tokens of two neighbouring channels
struct Own {
    int half, channel;     // tokens 8 half .. 8 half + 7; channels channel, channel + 1
    unsigned tile;         // offset of its first row in a swizzled tile; row i: tile ^ i * 0x90
    __device__ Own(int warp, int lane)
        : half(warp / 2), channel(64 * (warp % 2) + 2 * lane),
          tile(warp % 2 * TILE + half * (TILE / 2) + lane / 4 * 16 + lane % 4 * 4) {}
    __device__ bool some() const { return channel < KEY; }
    __device__ unsigned vector() const { return 4 * channel_place(channel); }
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

ON_DEVICE unsigned gate_at(const Own& own, int i) {
    return Input::G + (sizeof(GATE_IN) == 4 ? ((8 * own.half + i) * KEY + own.channel) * 4 : own.tile ^ i * 0x90);
}
ON_DEVICE Two raw_gates(unsigned in, const Own& own, int i) {
    if (sizeof(GATE_IN) == 4) return read_two(in + gate_at(own, i));
    const unsigned x = read_word(in + gate_at(own, i));
    return {low(x), high(x)};
}

// tokens from `rows` on do not exist: k = q = 0 and no decay. A thread clears what it owns
ON_DEVICE void clear_missing(unsigned in, const Own& own, int rows) {
    for (int i = 0; i < 8; ++i) {
        if (8 * own.half + i < rows) continue;
        write(in + Input::Q + (own.tile ^ i * 0x90), 0u);
        write(in + Input::K + (own.tile ^ i * 0x90), 0u);
        if (sizeof(GATE_IN) == 4) write(in + gate_at(own, i), NO_DECAY, NO_DECAY);
        else write(in + gate_at(own, i), pack(NO_DECAY, NO_DECAY));
    }
}

// [middle-units] d_i = G_i - G_8 in base 2: read keys k 2^d, queries q 2^d, write keys k 2^-d, and the decays of both halves.
// A thread sums away from the middle, so the halves need nothing of each other. Returns whether d is too large for that
template <int HALF> ON_DEVICE bool middle_units(unsigned in, unsigned scratch, unsigned stage, const Own& own, const Gate& gate) {
    Two d[8];
    unsigned k[8], q[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) d[i] = raw_gates(in, own, i);
    #pragma unroll
    for (int i = 0; i < 8; ++i) {
        k[i] = read_word(in + Input::K + (own.tile ^ i * 0x90));
        q[i] = read_word(in + Input::Q + (own.tile ^ i * 0x90));
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
        const unsigned row = own.tile ^ i * 0x90;
        const float x = exp2_unit(d[i].x), y = exp2_unit(d[i].y), back_x = exp2_unit(-d[i].x), back_y = exp2_unit(-d[i].y);
        write(scratch + Scratch::READ + row, pack(low(k[i]) * x, high(k[i]) * y));
        write(scratch + Scratch::Q + row, pack(low(q[i]) * x, high(q[i]) * y));
        write(stage + Stage::WRITE + row, pack(low(k[i]) * back_x, high(k[i]) * back_y));
    }
    write(stage + (HALF ? Stage::EXIT : Stage::ENTRY) + own.vector(), exp2_unit(sum.x), exp2_unit(sum.y));
    return largest > RANGE;
}
// [/middle-units]

// The scores and norms of a block, four products [16, 16, KEY] in bf16, one a warp:
// role 0 read keys x write keys, 1 queries x write keys, 2 k k^T and 3 q q^T, of which the diagonals are the norms.
// edges: the 8 x 8 blocks on the diagonal are pair_scores' part. beta: token lane % 16 of block lane / 16
template <int N> ON_DEVICE void scores(const unsigned (&in)[N], const unsigned (&scratch)[N], const unsigned (&stage)[N],
                                       int role, float beta, float scale, int lane, bool edges) {
    const int row = lane % 16, unit = lane / 16;
    const unsigned left = row * 128 + ((unit ^ row % 8) << 4);
    float x[N][2][4], y[N][2][4];    // columns 0..7 and 8..15, two partial sums each: shorter chains
    if (role < 2) {
        // tiles of the left factor: rows low and high, then the next 8 channels; of the right one: channels first
        const int column = lane % 8 + lane / 16 * 8, next = lane / 8 % 2;
        const unsigned right = column * 128 + ((next ^ column % 8) << 4);
        #pragma unroll
        for (int s = 0; s < KEY / 16; ++s)
            #pragma unroll
            for (int n = 0; n < N; ++n) {
                unsigned a[4], b[4];
                load_tiles(a, ((scratch[n] + (role ? Scratch::Q : Scratch::READ) + left) ^ s % 4 << 5) + s / 4 * TILE);
                load_tiles(b, ((stage[n] + Stage::WRITE + right) ^ s % 4 << 5) + s / 4 * TILE);
                if (s < 2) multiply_first(x[n][s], a, b[0], b[1]), multiply_first(y[n][s], a, b[2], b[3]);
                else multiply(x[n][s % 2], a, b[0], b[1]), multiply(y[n][s % 2], a, b[2], b[3]);
            }
    } else if (L2NORM) {
        #pragma unroll
        for (int n = 0; n < N; ++n)
            #pragma unroll
            for (int i = 0; i < 4; ++i) x[n][0][i] = x[n][1][i] = y[n][0][i] = y[n][1][i] = 0;
        #pragma unroll
        for (int s = 0; s < KEY / 16; ++s)
            #pragma unroll
            for (int n = 0; n < N; ++n) {    // a left fragment of depth 8 is its own right one
                unsigned a[4];
                load_tiles(a, ((in[n] + (role == 2 ? Input::K : Input::Q) + left) ^ s % 4 << 5) + s / 4 * TILE);
                multiply(x[n][0], a[0], a[1], a[0]), multiply(y[n][0], a[0], a[1], a[1]);
                multiply(x[n][1], a[2], a[3], a[2]), multiply(y[n][1], a[2], a[3], a[3]);
            }
    }
    const int r = lane / 4, c = 2 * (lane % 4);
    #pragma unroll
    for (int n = 0; n < N; ++n) {
        float e[4], f[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) e[i] = x[n][0][i] + x[n][1][i], f[i] = y[n][0][i] + y[n][1][i];
        if (role < 2) {
            if (role) {    // the mask selects: what lies above the diagonal may be inf
                e[0] = c <= r ? e[0] : 0, e[1] = c < r ? e[1] : 0, f[0] = f[1] = 0;
                f[2] = c <= r ? f[2] : 0, f[3] = c < r ? f[3] : 0;
            }
            const unsigned to = scratch[n] + (role ? Scratch::H + 16 * 80 : Scratch::A) + r * (role ? 80 : 64) + c * 4;
            const int below = 8 * (role ? 80 : 64);
            if (!UNBOUNDED || !edges) write(to, e[0], e[1]), write(to + below + 32, f[2], f[3]);
            write(to + 32, f[0], f[1]);
            write(to + below, e[2], e[3]);
        } else {
            // [l2-norm] a quarter of the lanes holds the diagonal, rows r and r + 8
            const float kk = ((r % 2 ? e[1] : e[0])) + 1e-6f, hh = ((r % 2 ? f[3] : f[2])) + 1e-6f;
            const float b = from_lane(beta, r + 16 * n), d = from_lane(beta, r + 8 + 16 * n);
            if (r / 2 == lane % 4) {
                const unsigned to = scratch[n] + Scratch::VECTORS + 4 * r;
                const float i = L2NORM ? inverse_root(kk) : 1, j = L2NORM ? inverse_root(hh) : 1;
                if (role == 2) {
                    write(to, b * i * i), write(to + 32, d * j * j);
                    write(to + 64, b * i), write(to + 96, d * j);
                } else write(to + 128, scale * i), write(to + 160, scale * j);
            }
            // [/l2-norm]
        }
    }
}

// [row-solve] lane r owns row r of 32: y_l final, then y_j -= c_l y_l A_lj for j < l. fp32; no power series, so nearly equal
// keys cost no digits. Stores z = c y for [-W; Q] and -b y for [T; M]
ON_DEVICE void row_solve(unsigned scratch, unsigned TM, int lane) {
    const unsigned vectors = scratch + Scratch::VECTORS;
    float y[16];
    const float sign = lane < 16 ? 1 : -read_float(vectors + 128 + lane % 16 * 4);
    #pragma unroll
    for (int j = 0; j < 16; j += 4) {
        const Four h = read_four(scratch + Scratch::H + lane * 80 + j * 4);
        y[j] = sign * h.x, y[j + 1] = sign * h.y, y[j + 2] = sign * h.z, y[j + 3] = sign * h.w;
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
    #pragma unroll
    for (int s = 0; s < 2; ++s) {
        write(scratch + Scratch::Z + s * 512 + lane * 16, z[4 * s], z[4 * s + 1], z[4 * s + 2], z[4 * s + 3]);
        write(TM + s * 512 + lane * 16, t[4 * s], t[4 * s + 1], t[4 * s + 2], t[4 * s + 3]);
    }
}
// [/row-solve]

// [folded-norms] [-W; Q] = [0; q_factor Q] + z read, 32 channels a warp
ON_DEVICE void fold(unsigned scratch, unsigned stage, int warp, int lane) {
    if (32 * warp >= KEY) return;
    const int row = lane % 16, unit = lane / 16;
    const unsigned tile = warp / 2 * TILE + row * 128 + ((warp % 2 * 4 + unit ^ row % 8) << 4);
    unsigned top[4], bottom[4], read[2][4], q[2][4];
    load_tiles(top, scratch + Scratch::Z + unit * 512 + row * 16);
    load_tiles(bottom, scratch + Scratch::Z + unit * 512 + (row + 16) * 16);
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        load_tiles_transposed(read[h], (scratch + Scratch::READ + tile) ^ h << 5);
        load_tiles(q[h], (scratch + Scratch::Q + tile) ^ h << 5);
    }
    const unsigned factors = scratch + Scratch::VECTORS + 128 + lane / 4 * 4;
    const float f = read_float(factors), g = read_float(factors + 32);
    unsigned W[4][2], Q[4][2];    // 8 channels each
    #pragma unroll
    for (int b = 0; b < 4; ++b) {
        const int h = b / 2, c = b % 2;
        const unsigned upper = q[h][2 * c], lower = q[h][2 * c + 1];
        float x[4], y[4] = {low(upper) * f, high(upper) * f, low(lower) * g, high(lower) * g};
        multiply_first(x, top, read[h][2 * c], read[h][2 * c + 1]);
        multiply(y, bottom, read[h][2 * c], read[h][2 * c + 1]);
        W[b][0] = pack(x[0], x[1]), W[b][1] = pack(x[2], x[3]);
        Q[b][0] = pack(y[0], y[1]), Q[b][1] = pack(y[2], y[3]);
    }
    const unsigned to = stage + Stage::WQ + warp / 2 * TILE + tile;    // a slice of WQ is two tiles high
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int b = 2 * h;
        store_tiles(to ^ h << 5, W[b][0], W[b][1], W[b + 1][0], W[b + 1][1]);
        store_tiles((to ^ h << 5) + TILE, Q[b][0], Q[b][1], Q[b + 1][0], Q[b + 1][1]);
    }
}
// [/folded-norms]
