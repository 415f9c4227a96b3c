// Who holds what in the shared memory of the Hopper kernel, in bytes. hopper.py asks for the same amount.
#pragma once
#include <cuda_bf16.h>

enum { GIVEN = 1, BOUNDED = 2, SOFTPLUS = 3 };
constexpr int C = 16, PAIR = 2 * C;                       // tokens of a block; the state takes two blocks a step
constexpr int BLOCK_ROWS = C * 128;                       // bytes of 16 tokens x 64 channels in bf16: rows of 128 bytes, swizzled
constexpr int TILE = 2 * BLOCK_ROWS;                      // of both blocks
constexpr int SLICES = KEY / 64;                          // tiles side by side
constexpr int KEYS = SLICES * TILE, VECTOR = 4 * KEY;     // a pair of keys; a float a channel
constexpr int STATE_GROUPS = CTAS == 2 ? 1 : VALUE / 64;  // warpgroups that hold 64 rows of S each
constexpr int PREPARE_GROUPS = 2;                         // warpgroups that make factors, in turns
constexpr int THREADS = 128 * (STATE_GROUPS + PREPARE_GROUPS);
// In a cluster four warpgroups prepare at once. They do so in memory of their own and need a stage at the end only; alone, in
// the stage itself
constexpr bool APART = CTAS == 2;
// Rings that say what happened to a pair are longer than the ring of stages: whoever waits knows a phase by its parity only, and
// must be less than two phases off
constexpr int SLOTS = 8;
// 128 registers a thread where there are four warpgroups, 168 where there are three. The state's need S, S as a left factor, X
constexpr int STATE_REGISTERS = THREADS == 512 ? 176 : 208, PREPARE_REGISTERS = THREADS == 512 ? 80 : 144;
static_assert(KEY % 64 == 0 && VALUE % 64 == 0 && KEY <= 128 && VALUE <= 128, "a warpgroup's tile is 64 wide");
static_assert(CTAS == 1 || VALUE == 128, "two thread blocks need 64 rows of S each");

__device__ constexpr int whole_lines(int bytes) { return (bytes + 1023) / 1024 * 1024; }

// keys and queries of a pair in the units of their blocks' middles, and what becomes of them. WQ: a block's read keys turn into
// -W and its queries into Q, in place
struct Units {
    static constexpr int WQ = 0;                       // [SLICES][2 blocks][2][16][64] bf16, swizzled
    static constexpr int WQ_SLICE = 2 * TILE, WQ_BLOCK = 2 * BLOCK_ROWS, Q_ROWS = BLOCK_ROWS;
    static constexpr int WRITE = WQ + 2 * KEYS;        // [SLICES][2 blocks][16][64] bf16, swizzled: write keys
    static constexpr int BYTES = WRITE + KEYS;
};
// the factors of a pair, from a prepare warpgroup to the state warpgroups. The first SENT bytes travel to the other thread
// block of a cluster
struct Stage {
    // cores [4][2][8][8] bf16 each: of the first block rows T, then M; zeros; of the second; then what the first block's
    // residuals do to the second. A product takes two neighbours: [TM; 0], [0; TM], and [whatever; P] when U and O of the first
    // block have been read. Products of half the width would make the compiler wait for each of them
    static constexpr int TM = Units::BYTES, CORES = 1024;
    static constexpr int TM_SECOND = TM + 2 * CORES, P = TM_SECOND + CORES;
    static constexpr int SCALE = P + CORES;            // [KEY] fp32 at channel_place: decay of the state over the pair
    static constexpr int EXIT = SCALE + VECTOR;        // [KEY] fp32 likewise: from the second middle to the pair's end
    static constexpr int SENT = EXIT + VECTOR;
    static constexpr int V = whole_lines(SENT);        // [STATE_GROUPS][2 blocks][16][64] bf16, swizzled
    static constexpr int BYTES = V + STATE_GROUPS * TILE;
};

// raw tokens of a pair, from the copy engine to a prepare warpgroup
struct Input {
    static constexpr int Q = 0, K = KEYS, G = 2 * KEYS;    // q, k and a bf16 g swizzled, an fp32 g [32][KEY] plain
    static constexpr int BYTES = G + PAIR * KEY * int(sizeof(GATE_IN));
};

// what a prepare warpgroup keeps of a pair it works on, beside Input and Units
struct Group {
    static constexpr int A = 0;                                      // [2][16][16] fp32: raw scores of read and write keys
    static constexpr int Z = A;                                      // [2][2][32][8] bf16: the solved rows, over A
    static constexpr int M = A + 2 * 1024;                           // [2][16][20] fp32: scores of the queries
    static constexpr int TM = M, TM_BLOCK = 1280;                    // [2] cores: T and M of a block, over its scores
    static constexpr int NORMS = M + 2 * 1280;                       // [2][3][16] fp32: beta/|k|^2, beta/|k|, scale/|q|
    static constexpr int CROSS_K = NORMS + 2 * 256;                  // [2][16][8] bf16: second read keys x first write keys
    static constexpr int CROSS_Q = CROSS_K + 512;                    // [16][16] fp32: its queries x write keys of the first
    static constexpr int ENTRY = CROSS_Q + 1024;                     // [2][KEY] fp32: decays from blocks' starts to middles
    static constexpr int EXIT = ENTRY + 2 * VECTOR;                  // [KEY] of the first block: from its middle to its end
    static constexpr int READS = ENTRY, READS_SECOND = EXIT + VECTOR;    // [KEY] each: what becomes of the columns of WQ
    static constexpr int BETWEEN = READS_SECOND + VECTOR;            // [KEY]: from the first middle to the second
    static constexpr int ACROSS = BETWEEN + VECTOR;                  // [2][KEY]: between reading and writing; 1 but for edges
    static constexpr int SUMS = ACROSS + (UNBOUNDED ? 2 * VECTOR : 0);    // [16][KEY] fp32: log2 decays summed over 8 tokens
    static constexpr int BYTES = SUMS + (UNBOUNDED ? C * VECTOR : 0);
};
constexpr int OUT_TILES = CTAS;
struct Shared {
    static constexpr int INPUTS = STAGES * Stage::BYTES;                  // [PREPARE_GROUPS] Input
    static constexpr int UNITS = INPUTS + PREPARE_GROUPS * Input::BYTES;  // [PREPARE_GROUPS] Units if APART
    static constexpr int OUT = UNITS + (APART ? PREPARE_GROUPS * Units::BYTES : 0);
        // [STATE_GROUPS][OUT_TILES][32][64] bf16: O on its way out
    static constexpr int GROUPS = OUT + STATE_GROUPS * OUT_TILES * TILE;  // [PREPARE_GROUPS] Group
    static constexpr int EXITS = GROUPS + PREPARE_GROUPS * Group::BYTES;  // [SLOTS][KEY] fp32: EXIT of the second blocks
    static constexpr int FULL = EXITS + SLOTS * VECTOR;              // mbarriers [STAGES]: a stage holds its factors
    static constexpr int LEFT = FULL + 8 * STAGES;                        // [SLOTS]: the state has left a pair
    static constexpr int EXIT_IS_THERE = LEFT + 8 * SLOTS;                // [SLOTS]
    static constexpr int TOKENS = EXIT_IS_THERE + 8 * SLOTS;         // [PREPARE_GROUPS]: raw tokens are there
    static constexpr int PLACE = TOKENS + 8 * PREPARE_GROUPS;             // word: which sequence
    static constexpr int BYTES = PLACE + 16;
};
static_assert(Shared::BYTES == SHARED_BYTES, "hopper.py asks for another amount of shared memory");
// Who writes a slot of EXITS again has waited for a stage: of that pair, or if APART of the pair he made before, four earlier.
// The state must by then have passed the pair after the one that the slot belonged to
static_assert(SLOTS >= STAGES + (APART ? 5 : 1), "too few slots");
static_assert(APART || STAGES > PREPARE_GROUPS, "too few stages");

// channel d of a vector of KEY floats that the state reads: a thread's channels 8j + 2a, + 1 for two j stand in 16 bytes, and
// the four a of a warp read from different banks
__device__ constexpr int channel_place(int d) {
    const int a = d / 2 % 4, j = d / 8;
    return a * (KEY / 4) + (((j / 2) ^ a) * 4 + j % 2 * 2 + d % 2);
}
