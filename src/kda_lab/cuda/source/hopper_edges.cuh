// Blocks whose gates are too strong for one reference. The two 8 x 8 blocks of scores on the diagonal are formed row by row, reads
// relative to the block's start, writes relative to its end. Every exponent is <= 0: what has decayed away is exactly 0.
// What lies below the diagonal blocks needs none of this: there the middle is between the two tokens.
#pragma once
#include <hopper_prepare.cuh>

// [decayed-scores] rows i of both halves: k_i and q_i against k_j 2^(G_i - G_j), j <= i. A row's decays make a right factor of
// their own, so each product has one row that is not 0: its own lanes hold it. x[h]: rows 0..7 keys, 8..15 queries of half h
ON_DEVICE void pair_scores(float (&x)[2][4], const Raw& r, const Exponents& e, int lane) {
    const int j = lane / 4;
    #pragma unroll 1
    for (int i = 0; i < 8; ++i) {
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            unsigned a[4], b[2];
            #pragma unroll
            for (int u = 0; u < 2; ++u) {
                const Two d = e.d[u][h];
                const float x = from_lane(d.x, 4 * i + lane % 4), y = from_lane(d.y, 4 * i + lane % 4);
                // selected, not multiplied: a later token's decay may be inf
                b[u] = j <= i ? decayed(r.k[2 * u + h], exp2_unit(Two{x - d.x, y - d.y})) : 0;
                a[2 * u] = j == i ? r.k[2 * u + h] : 0, a[2 * u + 1] = j == i ? r.q[2 * u + h] : 0;
            }
            multiply(x[h], a, b[0], b[1]);
        }
    }
}
// [/decayed-scores]

// [edge-units] a member's slices of a block, as middle_units does it, for any gates. Returns whether the middle would not have done
ON_DEVICE bool edge_units(unsigned slot, const Shifts& shifts, const Sums& sums, const Gate& gate, Scores& x, const Team& team, int lane) {
    float largest = 0, pairs[2][4] = {};
    #pragma unroll 1
    for (int n = 0; n < Team::SHARE; ++n) {
        const int s = team.slice() + n;
        const Places at(slot, s, lane);
        const Raw r = load_slice(slot, at, shifts, s, lane);
        const Exponents e = sum_gates(r, sums, gate, lane);
        add_norms(x, r, sums.ones);
        pair_scores(pairs, r, e, lane);
        unsigned k[4], q[4], w[4], late_k[4] = {}, late_q[4] = {}, early[2];
        Two all[2];
        #pragma unroll
        for (int u = 0; u < 2; ++u) {
            const int last = 28 + lane % 4;    // the lane that holds both sums
            const Two entry = {from_lane(e.entry[u].x, last), from_lane(e.entry[u].y, last)};
            const Two exit = {from_lane(e.d[u][1].x, last), from_lane(e.d[u][1].y, last)};
            all[u] = {entry.x + exit.x, entry.y + exit.y};
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int i = 2 * u + h;
                const Two d = e.d[u][h];
                // [chunk-inputs] read keys and queries times 2^G_i in place of the middle's
                const Two G = exp2_unit(Two{entry.x + d.x, entry.y + d.y});
                k[i] = decayed(r.k[i], G), q[i] = decayed(r.q[i], G);
                // [/chunk-inputs]
                // [chunk-kg] write keys times 2^(G_16 - G_i)
                w[2 * h + u] = decayed(r.k[i], exp2_unit(Two{exit.x - d.x, exit.y - d.y}));
                // [/chunk-kg]
                largest = fmaxf(largest, fmaxf(fabsf(d.x), fabsf(d.y)));
            }
            const Two d = exp2_unit(e.d[u][1]);
            late_k[2 * u + 1] = decayed(r.k[2 * u + 1], d), late_q[2 * u + 1] = decayed(r.q[2 * u + 1], d);
            early[u] = decayed(r.k[2 * u], exp2_of_minus(e.d[u][0]));
        }
        multiply(x.A[0], late_k, early[0], early[1]), multiply(x.M[0], late_q, early[0], early[1]);
        store_tiles(at.keys, k[0], k[1], k[2], k[3]);
        store_tiles(at.keys + TILE, q[0], q[1], q[2], q[3]);
        store_tiles(at.write, w[0], w[1], w[2], w[3]);
        #pragma unroll
        for (int u = 0; u < 2; ++u) write_logs(slot, s, u, lane, all[u], Two{0, 0});
    }
    #pragma unroll
    for (int e = 0; e < 2; ++e) {
        x.A[0][e] = pairs[0][e], x.M[0][e] = pairs[0][2 + e];
        x.A[1][2 + e] = pairs[1][e], x.M[1][2 + e] = pairs[1][2 + e];
    }
    return team.any(!(largest <= RANGE));
}
// [/edge-units]
