// Blocks whose gates are too strong for one reference: scores of the two 8 x 8 blocks on the diagonal pair by pair, reads
// relative to the block's start, writes relative to its end. Every exponent is <= 0: what has decayed away is exactly 0.
// What lies below the diagonal blocks needs none of this: there the middle is between the two tokens.
#pragma once
#include <hopper_pairs/scores.cuh>

ON_DEVICE unsigned sum_at(int token, int channel) { return Group::SUMS + (token * KEY + channel) * 4; }

// log2 decays summed from the start of 8 tokens
ON_DEVICE void sum_gates(unsigned in, unsigned group, const Own& own, int block, const Gate& gate) {
    Two sum = {0, 0};
    #pragma unroll 2
    for (int i = 0; i < 8; ++i) {
        const Two g = raw_gates(in, own, block, i);
        sum = {sum.x + gate(g.x, gate.shift_x), sum.y + gate(g.y, gate.shift_y)};
        write(group + sum_at(8 * own.half + i, own.channel), sum.x, sum.y);
    }
}

// [decayed-scores] rows i of half warp / 2 with i % 2 = warp % 2: k_i and q_i, two rows of a product, against
// k_j 2^(G_i - G_j), j <= i, made in the layout of its right factor; lane l forms token l / 4
ON_DEVICE void pair_scores(unsigned in, unsigned group, int block, int warp, int lane) {
    const int first = warp / 2 * 8, j = lane / 4, t = 2 * (lane % 4);
    #pragma unroll 1
    for (int i = warp % 2; i < 8; i += 2) {
        float x[4] = {};
        #pragma unroll 1
        for (int s = 0; s < KEY / 16; ++s) {
            unsigned a[4] = {}, b[2];
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int channel = 16 * s + 8 * h + t, unit = channel % 64 / 8;
                const unsigned slice = channel / 64 * TILE + block * BLOCK_ROWS + lane % 4 * 4;
                const unsigned row_i = slice + (first + i) * 128 + ((unit ^ i) << 4);
                const unsigned row_j = slice + (first + j) * 128 + ((unit ^ j) << 4);
                if (j < 2) a[2 * h] = read_word(in + (j ? Input::Q : Input::K) + row_i);
                const Two Gi = read_two(group + sum_at(first + i, channel));
                const Two Gj = read_two(group + sum_at(first + j, channel));
                const unsigned k = read_word(in + Input::K + row_j);
                // selected, not multiplied: a later token's decay may be nan
                b[h] = j <= i ? pack(low(k) * exp2_unit(Gi.x - Gj.x), high(k) * exp2_unit(Gi.y - Gj.y)) : 0;
            }
            multiply(x, a, b[0], b[1]);
        }
        const int column = first + t;
        if (j == 0) write(group + Group::A + block * 1024 + (first + i) * 64 + column * 4, x[0], x[1]);
        if (j == 1) write(group + Group::M + block * 1280 + (first + i) * 80 + column * 4, x[0], x[1]);
    }
}
// [/decayed-scores]

// [chunk-inputs] read keys and queries times 2^G_i in place of the middle's,
// [chunk-kg] write keys times 2^(G_16 - G_i). The state then decays between reading and writing
ON_DEVICE void edge_units(unsigned in, unsigned units, unsigned group, unsigned exit, const Own& own, int block) {
    const Two early = read_two(group + sum_at(7, own.channel)), late = read_two(group + sum_at(15, own.channel));
    const Two before = own.half ? early : Two{0, 0}, end = own.half ? late : Two{early.x + late.x, early.y + late.y};
    #pragma unroll 2
    for (int i = 0; i < 8; ++i) {
        const unsigned tile = own.tile(block, i), read = units + own.read(block, i);
        const unsigned k = read_word(in + Input::K + tile), q = read_word(in + Input::Q + tile);
        const Two G = read_two(group + sum_at(8 * own.half + i, own.channel));
        const float x = exp2_unit(before.x + G.x), y = exp2_unit(before.y + G.y);
        write(read, pack(low(k) * x, high(k) * y));
        write(read + Units::Q_ROWS, pack(low(q) * x, high(q) * y));
        write(units + Units::WRITE + tile, pack(low(k) * exp2_unit(end.x - G.x), high(k) * exp2_unit(end.y - G.y)));
    }
    const unsigned d = 4 * own.channel;
    if (own.half) {
        write((block ? exit : group + Group::EXIT) + d, 1.f, 1.f);
        write(group + Group::ACROSS + block * VECTOR + d, exp2_unit(early.x + late.x), exp2_unit(early.y + late.y));
    } else write(group + Group::ENTRY + block * VECTOR + d, 1.f, 1.f);
}
// [/chunk-kg]
// [/chunk-inputs]
