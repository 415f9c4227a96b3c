// From the scores of a block to the factors that the state needs: norms, the solve, decays, the fold. Names as in chunk_fused.
#pragma once
#include <hopper_slices.cuh>

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
// the columns of [-W; Q], and S itself decays behind the product. entry, before: this lane's part of the way to this block's middle
// and of the EXIT of the block before, 0 where there is none; edges: read at the block's start
ON_DEVICE Four exp2_unit(Four x) { return {exp2_unit(x.x), exp2_unit(x.y), exp2_unit(x.z), exp2_unit(x.w)}; }
ON_DEVICE void decays(unsigned slot, unsigned scratch, Four entry, Four before, bool edges, int lane) {
    if (lane < KEY / 4) {
        const Four both = exp2_unit(Four{entry.x + before.x, entry.y + before.y, entry.z + before.z, entry.w + before.w});
        write(slot + Slot::SCALE + 16 * lane, both);
        if (UNBOUNDED) write(scratch + Scratch::FOLD + 16 * lane, edges ? exp2_unit(before) : both);
    }
    __syncwarp();
}
// [/folded-decays]

// [folded-norms] [-W; Q] = [0; q_factor Q] + z read, in place of read keys and queries
ON_DEVICE void fold(unsigned slot, unsigned scratch, const Kept& kept, const Team& team, int lane) {
    unsigned top[4], bottom[4];
    load_tiles(top, scratch + Scratch::Z + lane / 16 * 512 + lane % 16 * 16);
    load_tiles(bottom, scratch + Scratch::Z + lane / 16 * 512 + (lane % 16 + 16) * 16);
    const unsigned factors = scratch + Scratch::VECTORS + 128 + lane / 4 * 4;
    const float f = read_float(factors), g = read_float(factors + 32);
    const Places first(slot, team.slice(), lane);
    #pragma unroll (KEEPS ? Team::SHARE : 1)
    for (int i = 0; i < Team::SHARE; i += FOLDED_TOGETHER) {
        unsigned read[FOLDED_TOGETHER][4], q[FOLDED_TOGETHER][4], W[FOLDED_TOGETHER][4], Q[FOLDED_TOGETHER][4];
        Four by[FOLDED_TOGETHER];
        #pragma unroll
        for (int j = 0; j < FOLDED_TOGETHER; ++j) {
            load_tiles_transposed(read[j], first.next(i + j).keys);
            if (!KEEPS) load_tiles(q[j], first.next(i + j).keys + TILE);
            #pragma unroll
            for (int n = 0; n < 4; ++n) q[j][n] = KEEPS ? kept.q[KEEPS ? i + j : 0][n] : q[j][n];
            by[j] = read_four((UNBOUNDED ? scratch + Scratch::FOLD : slot + Slot::SCALE) + vector_place(team.slice() + i + j, lane));
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
            const Places at = first.next(i + j);
            store_tiles(at.keys, W[j][0], W[j][1], W[j][2], W[j][3]);
            store_tiles(at.keys + TILE, Q[j][0], Q[j][1], Q[j][2], Q[j][3]);
        }
    }
}
// [/folded-norms]
