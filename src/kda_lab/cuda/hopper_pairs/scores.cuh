// The small matrices of a pair of blocks: scores, norms, the triangular solve, and what goes to the state.
#pragma once
#include <hopper_pairs/prepare.cuh>

// byte offset of the row and 16-byte unit whose address lane gives for four 8 x 8 tiles: as left factor (rows first), as right
// factor (channels first)
ON_DEVICE unsigned left_tiles(int lane) { return lane % 16 * 128 + ((lane / 16 ^ lane % 8) << 4); }
ON_DEVICE unsigned right_tiles(int lane) { return (lane % 8 + lane / 16 * 8) * 128 + ((lane / 8 % 2 ^ lane % 8) << 4); }
// the same 16 s channels on; slice: bytes from one slice of 64 channels to the next
ON_DEVICE unsigned channels_on(unsigned tiles, int s, int slice) { return (tiles ^ s % 4 << 5) + s / 4 * slice; }

// Four products [16, 16, KEY] of each block, one a warp:
// role 0 read keys x write keys, 1 queries x write keys, 2 k k^T and 3 q q^T, of which the diagonals are the norms.
// edges: the 8 x 8 blocks on the diagonal are pair_scores' part. beta: of token lane of the pair
ON_DEVICE void scores(unsigned in, unsigned units, unsigned group, int role, float beta, float scale, int lane, bool edges) {
    float x[2][2][4], y[2][2][4];    // [block][partial sum: shorter chains]: columns 0..7 and 8..15
    if (role < 2) {
        #pragma unroll
        for (int s = 0; s < KEY / 16; ++s)
            #pragma unroll
            for (int n = 0; n < 2; ++n) {
                unsigned a[4], b[4];
                const unsigned left = role * Units::Q_ROWS + channels_on(left_tiles(lane), s, Units::WQ_SLICE);
                load_tiles(a, units + left + n * Units::WQ_BLOCK);
                load_tiles(b, units + channels_on(right_tiles(lane), s, TILE) + Units::WRITE + n * BLOCK_ROWS);
                if (s < 2) multiply_first(x[n][s], a, b[0], b[1]), multiply_first(y[n][s], a, b[2], b[3]);
                else multiply(x[n][s % 2], a, b[0], b[1]), multiply(y[n][s % 2], a, b[2], b[3]);
            }
    } else if (L2NORM) {
        #pragma unroll
        for (int n = 0; n < 2; ++n)
            #pragma unroll
            for (int i = 0; i < 4; ++i) x[n][0][i] = x[n][1][i] = y[n][0][i] = y[n][1][i] = 0;
        #pragma unroll
        for (int s = 0; s < KEY / 16; ++s)
            #pragma unroll
            for (int n = 0; n < 2; ++n) {    // a left fragment of depth 8 is its own right one
                unsigned a[4];
                load_tiles(a, in + (role == 2 ? Input::K : Input::Q) + channels_on(left_tiles(lane), s, TILE) + n * BLOCK_ROWS);
                multiply(x[n][0], a[0], a[1], a[0]), multiply(y[n][0], a[0], a[1], a[1]);
                multiply(x[n][1], a[2], a[3], a[2]), multiply(y[n][1], a[2], a[3], a[3]);
            }
    }
    const int r = lane / 4, c = 2 * (lane % 4);
    #pragma unroll
    for (int n = 0; n < 2; ++n) {
        float e[4], f[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) e[i] = x[n][0][i] + x[n][1][i], f[i] = y[n][0][i] + y[n][1][i];
        if (role < 2) {
            if (role) {    // the mask selects: what lies above the diagonal may be inf
                e[0] = c <= r ? e[0] : 0, e[1] = c < r ? e[1] : 0, f[0] = f[1] = 0;
                f[2] = c <= r ? f[2] : 0, f[3] = c < r ? f[3] : 0;
            }
            const int pitch = role ? 80 : 64;
            const unsigned to = group + (role ? Group::M + n * 1280 : Group::A + n * 1024) + r * pitch + c * 4;
            if (!UNBOUNDED || !edges) write(to, e[0], e[1]), write(to + 8 * pitch + 32, f[2], f[3]);
            write(to + 32, f[0], f[1]);
            write(to + 8 * pitch, e[2], e[3]);
        } else {
            // [l2-norm] a quarter of the lanes holds the diagonal, rows r and r + 8
            const float b = from_lane(beta, r + 16 * n), d = from_lane(beta, r + 8 + 16 * n);
            const float kk = (r % 2 ? e[1] : e[0]) + 1e-6f, hh = (r % 2 ? f[3] : f[2]) + 1e-6f;
            const float i = L2NORM ? inverse_root(kk) : 1, j = L2NORM ? inverse_root(hh) : 1;
            if (r / 2 == lane % 4) {
                const unsigned to = group + Group::NORMS + n * 256 + 4 * r;
                if (role == 2) {
                    write(to, b * i * i), write(to + 32, d * j * j);
                    write(to + 64, b * i), write(to + 96, d * j);
                } else write(to + 128, scale * i), write(to + 160, scale * j);
            }
            // [/l2-norm]
        }
    }
}

// decays from the first middle to the second, 4 channels a lane
ON_DEVICE void decays_between(unsigned group, int lane) {
    if (4 * lane >= KEY) return;
    const Four exit = read_four(group + Group::EXIT + 16 * lane), entry = read_four(group + Group::ENTRY + VECTOR + 16 * lane);
    write(group + Group::BETWEEN + 16 * lane, exit.x * entry.x, exit.y * entry.y);
    write(group + Group::BETWEEN + 16 * lane + 8, exit.z * entry.z, exit.w * entry.w);
}

// [row-solve] of a block, by one warp: lane r owns row r of 32. y_l is final, then y_j -= c_l y_l A_lj for j < l. fp32; no power
// series, so nearly equal keys cost no digits. Stores z = c y for [-W; Q] and -b y for [T; M]
ON_DEVICE void row_solve(unsigned group, int block, int lane) {
    const unsigned norms = group + Group::NORMS + block * 256, A = group + Group::A + block * 1024;
    float y[16];
    if (lane < 16) {
        #pragma unroll
        for (int j = 0; j < 16; ++j) y[j] = j == lane ? -1 : 0;
    } else {
        const float factor = -read_float(norms + 128 + lane % 16 * 4);
        #pragma unroll
        for (int j = 0; j < 16; j += 4) {
            const Four h = read_four(group + Group::M + block * 1280 + lane % 16 * 80 + j * 4);
            y[j] = factor * h.x, y[j + 1] = factor * h.y, y[j + 2] = factor * h.z, y[j + 3] = factor * h.w;
        }
    }
    unsigned z[8], t[8];
    Four next[4];    // the next row of A, loaded a step ahead
    #pragma unroll
    for (int j = 0; j < 4; ++j) next[j] = read_four(A + 15 * 64 + j * 16);
    #pragma unroll
    for (int l0 = 14; l0 >= 0; l0 -= 2) {
        const Two c = read_two(norms + l0 * 4), b = read_two(norms + 64 + l0 * 4);
        float u[2];
        #pragma unroll
        for (int h = 1; h >= 0; --h) {
            const int l = l0 + h;
            Four now[4];
            #pragma unroll
            for (int j = 0; j < 4; ++j) now[j] = next[j];
            #pragma unroll
            for (int j = 0; j < 4; ++j)
                if (4 * j < l - 1) next[j] = read_four(A + (l - 1) * 64 + j * 16);
            u[h] = (h ? c.y : c.x) * y[l];
            const float* row = &now[0].x;
            #pragma unroll
            for (int j = l - 1; j >= 0; --j) y[j] = fmaf(-u[h], row[j], y[j]);
        }
        z[l0 / 2] = pack(u[0], u[1]);
        t[l0 / 2] = pack(-b.x * y[l0], -b.y * y[l0 + 1]);
    }
    __syncwarp();    // every lane has read A and M, whose places z and t take
    #pragma unroll
    for (int s = 0; s < 2; ++s) {
        write(group + Group::Z + block * 1024 + s * 512 + lane * 16, z[4 * s], z[4 * s + 1], z[4 * s + 2], z[4 * s + 3]);
        const unsigned TM = group + Group::TM + block * Group::TM_BLOCK + lane / 8 * 256 + s * 128 + lane % 8 * 16;
        write(TM, t[4 * s], t[4 * s + 1], t[4 * s + 2], t[4 * s + 3]);
    }
}
// [/row-solve]

// [chunk-pair] scores between the blocks: read keys (queries = false) or queries of the second one against the write keys of the
// first, decayed to the second middle. By one warp
ON_DEVICE void cross_scores(unsigned units, unsigned group, bool queries, int lane) {
    float x[4] = {}, y[4] = {};
    const int t = 2 * (lane % 4), r = lane / 4;
    #pragma unroll
    for (int s = 0; s < KEY / 16; ++s) {
        unsigned a[4], b[4];
        load_tiles(a, units + queries * Units::Q_ROWS + channels_on(left_tiles(lane), s, Units::WQ_SLICE) + Units::WQ_BLOCK);
        load_tiles(b, units + channels_on(right_tiles(lane), s, TILE) + Units::WRITE);
        #pragma unroll
        for (int h = 0; h < 2; ++h) {    // tiles 0 and 2: channels 16 s + t, 1 and 3: 8 further
            const Two f = read_two(group + Group::BETWEEN + 4 * (16 * s + 8 * h + t));
            b[h] = pack(low(b[h]) * f.x, high(b[h]) * f.y), b[h + 2] = pack(low(b[h + 2]) * f.x, high(b[h + 2]) * f.y);
        }
        multiply(x, a, b[0], b[1]), multiply(y, a, b[2], b[3]);
    }
    if (queries) {
        const unsigned to = group + Group::CROSS_Q + r * 64 + t * 4;
        write(to, x[0], x[1]), write(to + 512, x[2], x[3]), write(to + 32, y[0], y[1]), write(to + 544, y[2], y[3]);
    } else {
        const unsigned to = group + Group::CROSS_K + r * 16 + t * 2;
        write(to, pack(x[0], x[1])), write(to + 128, pack(x[2], x[3]));
        write(to + 256, pack(y[0], y[1])), write(to + 384, pack(y[2], y[3]));
    }
}

// what becomes of the columns of the factors, a thread a channel. before: from the units of S to the first middle
ON_DEVICE void column_factors(unsigned group, float before, int channel) {
    const unsigned d = 4 * channel;
    const float first = before * read_float(group + Group::ENTRY + d);
    const float across = UNBOUNDED ? read_float(group + Group::ACROSS + d) : 1;
    write(group + Group::READS + d, first);
    write(group + Group::READS_SECOND + d, first * across * read_float(group + Group::BETWEEN + d));
}
// what is ready in other places: T and M, a thread 16 bytes; decays for the state, a thread a channel
ON_DEVICE void move_to_stage(unsigned group, unsigned stage, unsigned exit, int thread) {
    const int block = thread / 64, at = thread % 64 * 16;
    const Four x = read_four(group + Group::TM + block * Group::TM_BLOCK + at);
    const unsigned to = stage + (block ? Stage::TM_SECOND : Stage::TM) + at;
    write(to, __float_as_uint(x.x), __float_as_uint(x.y), __float_as_uint(x.z), __float_as_uint(x.w));
    if (thread >= KEY) return;
    const float across = UNBOUNDED ? read_float(group + Group::ACROSS + VECTOR + 4 * thread) : 1;
    write(stage + Stage::SCALE + 4 * channel_place(thread), read_float(group + Group::READS_SECOND + 4 * thread) * across);
    write(stage + Stage::EXIT + 4 * channel_place(thread), read_float(exit + 4 * thread));
}

// the solved rows as left factors: those of T, those of M
ON_DEVICE void load_z(unsigned (&top)[4], unsigned (&bottom)[4], unsigned group, int block, int lane) {
    const unsigned z = group + Group::Z + block * 1024 + lane / 16 * 512 + lane % 16 * 16;
    load_tiles(top, z), load_tiles(bottom, z + 256);
}
// [folded-norms] [-W; Q] = [0; q_factor Q] + z read, 32 channels a warp, times what becomes of the columns
ON_DEVICE void fold(unsigned units, unsigned group, unsigned stage, int block, int warp, int lane) {
    const unsigned tiles = lane % 16 * 128 + ((warp % 2 * 4 + lane / 16 ^ lane % 8) << 4);
    const unsigned at = warp / 2 * Units::WQ_SLICE + block * Units::WQ_BLOCK;
    unsigned top[4], bottom[4], read[2][4], q[2][4];
    load_z(top, bottom, group, block, lane);
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        load_tiles_transposed(read[h], units + (tiles ^ h << 5) + at);
        load_tiles(q[h], units + (tiles ^ h << 5) + at + Units::Q_ROWS);
    }
    const unsigned norms = group + Group::NORMS + block * 256 + 128 + lane / 4 * 4;
    const float f = read_float(norms), g = read_float(norms + 32);
    unsigned W[4][2], Q[4][2];    // 8 channels each
    #pragma unroll
    for (int b = 0; b < 4; ++b) {
        const int h = b / 2, c = b % 2;
        const unsigned reads = group + (block ? Group::READS_SECOND : Group::READS);
        const Two column = read_two(reads + 4 * (32 * warp + 8 * b + lane % 4 * 2));
        float x[4], y[4] = {low(q[h][2 * c]) * f, high(q[h][2 * c]) * f, low(q[h][2 * c + 1]) * g, high(q[h][2 * c + 1]) * g};
        multiply_first(x, top, read[h][2 * c], read[h][2 * c + 1]);
        multiply(y, bottom, read[h][2 * c], read[h][2 * c + 1]);
        W[b][0] = pack(x[0] * column.x, x[1] * column.y), W[b][1] = pack(x[2] * column.x, x[3] * column.y);
        Q[b][0] = pack(y[0] * column.x, y[1] * column.y), Q[b][1] = pack(y[2] * column.x, y[3] * column.y);
    }
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int b = 2 * h;
        const unsigned to = stage + (tiles ^ h << 5) + at;
        store_tiles(to, W[b][0], W[b][1], W[b + 1][0], W[b + 1][1]);
        store_tiles(to + Units::Q_ROWS, Q[b][0], Q[b][1], Q[b + 1][0], Q[b + 1][1]);
    }
}
// [/folded-norms]

// write keys of the first block to the second middle; those of the second only change their place if that is another
ON_DEVICE void move_write_keys(unsigned units, unsigned group, unsigned stage, int warp, int lane) {
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        const unsigned unit = warp % 2 * 4 + 2 * h + lane / 16;
        const unsigned tile = Units::WRITE + warp / 2 * TILE + lane % 16 * 128 + ((unit ^ lane % 8) << 4);
        unsigned k[4];
        load_tiles(k, units + tile);
        #pragma unroll
        for (int i = 0; i < 4; ++i) {    // tiles 0, 1: 8 channels; 2, 3: the next 8
            const unsigned d = 4 * (32 * warp + 16 * h + i / 2 * 8 + lane % 4 * 2);
            Two column = read_two(group + Group::BETWEEN + d);
            if (UNBOUNDED) {
                const Two across = read_two(group + Group::ACROSS + VECTOR + d);
                column = {column.x * across.x, column.y * across.y};
            }
            k[i] = pack(low(k[i]) * column.x, high(k[i]) * column.y);
        }
        store_tiles(stage + tile, k[0], k[1], k[2], k[3]);
        if (APART) {
            load_tiles(k, units + tile + BLOCK_ROWS);
            store_tiles(stage + tile + BLOCK_ROWS, k[0], k[1], k[2], k[3]);
        }
    }
}

// P = [0; q_factor cross_q] + z cross_k of the second block: rows of warp / 2, columns of warp % 2
ON_DEVICE void fold_cross(unsigned group, unsigned stage, int warp, int lane) {
    const int r = lane / 4, t = 2 * (lane % 4), column = warp % 2;
    unsigned top[4], bottom[4], k[4];    // k: rows 0..7, 8..15 of the first 8 columns, then of the others
    load_z(top, bottom, group, 1, lane);
    load_tiles_transposed(k, group + Group::CROSS_K + lane / 16 * 256 + lane % 16 * 16);
    float x[4] = {};
    if (warp / 2) {
        const unsigned norms = group + Group::NORMS + 256 + 128 + 4 * r;
        const unsigned q = group + Group::CROSS_Q + r * 64 + column * 32 + t * 4;
        const float f = read_float(norms), g = read_float(norms + 32);
        const Two upper = read_two(q), lower = read_two(q + 512);
        x[0] = f * upper.x, x[1] = f * upper.y, x[2] = g * lower.x, x[3] = g * lower.y;
        multiply(x, bottom, column ? k[2] : k[0], column ? k[3] : k[1]);
    } else multiply(x, top, column ? k[2] : k[0], column ? k[3] : k[1]);
    const unsigned to = stage + Stage::P + warp / 2 * 512 + column * 128 + r * 16 + t * 2;
    write(to, pack(x[0], x[1])), write(to + 256, pack(x[2], x[3]));
}
// [/chunk-pair]
