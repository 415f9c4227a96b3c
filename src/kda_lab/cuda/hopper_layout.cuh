// Who holds what in the shared memory of the Hopper kernel, in bytes. hopper.py asks for the same amount.
#pragma once
#include <cuda_bf16.h>

enum { GIVEN = 1, BOUNDED = 2, SOFTPLUS = 3 };
constexpr int C = 16;                                     // tokens of a block
constexpr int TILE = C * 128;                             // 16 tokens x 64 channels in bf16: rows of 128 bytes, swizzled
constexpr int KEY_SLICES = KEY / 64;                      // tiles side by side
constexpr int KEYS = KEY_SLICES * TILE;
constexpr int STATE_GROUPS = CTAS == 2 ? 1 : VALUE / 64;  // warpgroups that hold 64 rows of S each
constexpr int PREPARE_GROUPS = 2;                         // warpgroups that make factors, in turns
constexpr int THREADS = 128 * (STATE_GROUPS + PREPARE_GROUPS);
// blocks that a warpgroup prepares side by side: two chains of latency instead of one, half the barriers
constexpr int AT_ONCE = CTAS == 1 && !UNBOUNDED ? 2 : 1;
// of 128 a thread where there are four warpgroups: the state's hold S, [-W; Q] as a left factor, X and a vector of channels
constexpr int STATE_REGISTERS = 160;
static_assert(KEY % 64 == 0 && VALUE % 64 == 0 && KEY <= 128 && VALUE <= 128, "a warpgroup's tile is 64 wide");
static_assert(CTAS == 1 || VALUE == 128, "two thread blocks need 64 rows of S each");

__device__ constexpr int whole_lines(int bytes) { return (bytes + 1023) / 1024 * 1024; }

// the factors of one block of tokens, from a prepare warpgroup to the state warpgroups. The first SENT bytes travel to
// the other thread block of a cluster
struct Stage {
    static constexpr int WQ = 0;                   // [KEY_SLICES][32][64] bf16, swizzled: rows -W, then rows Q
    static constexpr int WRITE = WQ + 2 * KEYS;    // [KEY_SLICES][16][64] bf16, swizzled: the write keys
    static constexpr int TM = WRITE + KEYS;        // [2][32][8] bf16: rows T, then rows M
    static constexpr int ENTRY = TM + 1024;        // [KEY] fp32 at channel_place: from the units of S to the block's middle
    static constexpr int EXIT = ENTRY + 4 * KEY;   // [KEY] fp32 likewise: from the middle to the block's end
    static constexpr int ACROSS = EXIT + 4 * KEY;  // [KEY] fp32 likewise: between reading and writing; only in EDGES
    static constexpr int EDGES = ACROSS + 4 * KEY; // word: 1 where gates are too strong for one reference
    static constexpr int SENT = UNBOUNDED ? EDGES + 16 : ACROSS;
    static constexpr int V = whole_lines(SENT);    // [STATE_GROUPS][16][64] bf16, swizzled
    static constexpr int BYTES = V + STATE_GROUPS * TILE;
};

// raw tokens, from the copy engine to a prepare warpgroup
struct Input {
    static constexpr int Q = 0, K = KEYS, G = 2 * KEYS;    // q, k and a bf16 g swizzled, an fp32 g [16][KEY] plain
    static constexpr int BYTES = G + C * KEY * int(sizeof(GATE_IN));
};

// what a prepare warpgroup keeps of a block it works on
struct Scratch {
    static constexpr int READ = 0, Q = KEYS;               // read keys and queries in the block's units, like WRITE
    static constexpr int Z = 2 * KEYS;                     // [2][32][8] bf16: the solved rows
    static constexpr int A = Z + 1024;                     // [16][16] fp32: raw scores of read and write keys
    static constexpr int H = A + 1024;                     // [32][20] fp32: rows 0..15 -I, 16..31 scores of the queries
    static constexpr int VECTORS = H + 32 * 80;            // [3][16] fp32: beta/|k|^2, beta/|k|, scale/|q|
    static constexpr int SUMS = VECTORS + 256;             // [16][KEY] fp32: log2 decays summed from the start of 8 tokens
    static constexpr int BYTES = whole_lines(SUMS + (UNBOUNDED ? C * KEY * 4 : 0));
};
struct Group {    // of one prepare warpgroup
    static constexpr int INPUT = 0;                        // AT_ONCE in work, the others on their way: two in all
    static constexpr int SCRATCH = 2 * Input::BYTES;
    static constexpr int BYTES = SCRATCH + AT_ONCE * Scratch::BYTES;
};
struct Shared {
    static constexpr int STAGES_AT = 0;
    static constexpr int GROUPS = STAGES * Stage::BYTES;
    static constexpr int OUT = GROUPS + PREPARE_GROUPS * Group::BYTES;    // [STATE_GROUPS][3][16][64] bf16: O on its way out
    static constexpr int FULL = OUT + STATE_GROUPS * 3 * TILE;            // mbarriers [STAGES]: a stage holds its factors
    static constexpr int EMPTY = FULL + 8 * STAGES;                       // [STAGES]: nobody reads it any more
    static constexpr int EXITS = EMPTY + 8 * STAGES;                      // [STAGES]: its EXIT is there
    static constexpr int INPUTS = EXITS + 8 * STAGES;                     // [PREPARE_GROUPS][2]: raw tokens are there
    static constexpr int PLACE = INPUTS + 8 * 2 * PREPARE_GROUPS;         // word: which sequence
    static constexpr int BYTES = PLACE + 16 + 1024;                       // and up to 1024 to the first line
};
static_assert(Shared::BYTES == SHARED_BYTES, "hopper.py asks for another amount of shared memory");
// a block's EXIT is read while the next one is prepared, and its stage must not be in use again
static_assert(STAGES > AT_ONCE * PREPARE_GROUPS, "too few stages");

// channel d of a vector of KEY floats: a thread's channels 8j + 2a, + 1 for two j stand in 16 bytes, and the four a of a
// warp read from different banks
__device__ constexpr int channel_place(int d) {
    const int a = d / 2 % 4, j = d / 8;
    return a * (KEY / 4) + (((j / 2) ^ a) * 4 + j % 2 * 2 + d % 2);
}
