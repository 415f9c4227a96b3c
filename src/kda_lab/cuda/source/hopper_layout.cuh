// Who holds what in the shared memory of the Hopper kernel, in bytes. hopper.py asks for the same amount.
#pragma once
#include <cuda_bf16.h>

enum { GIVEN = 1, BOUNDED = 2, SOFTPLUS = 3 };
constexpr int C = 16;                                     // tokens of a block
constexpr int TILE = C * 128;                             // 16 tokens x 64 channels in bf16: rows of 128 bytes, swizzled
constexpr int KEY_SLICES = KEY / 64;                      // tiles side by side
constexpr int KEYS = KEY_SLICES * TILE;
constexpr int BOUNDS = 128;                              // bounds of sequences that are kept near
constexpr int GATES = KEYS * int(sizeof(GATE_IN)) / 2;
// warps: four hold the state, the next ones prepare, the last four move tokens: two bring them in, two take them out. What a thread of each kind needs of
// the 512 registers that four threads have: the state's hold S, S again as a left factor, X and a vector of channels
constexpr int THREADS = 512, STATE_WARPS = 4, LOADERS = 12, STORER = LOADERS + 2;
constexpr int STATE_REGISTERS = 200, PREPARE_REGISTERS = 136;
constexpr int MOVE_REGISTERS = 512 - STATE_REGISTERS - 2 * PREPARE_REGISTERS;
static_assert(KEY == 64 || KEY == 128, "a tile is 64 wide");
static_assert(CTAS == 1 || CTAS == 2, "VALUE is 64 times that");
// who arrives at an mbarrier for a warp: one lane, behind a __syncwarp. Or each, for checkers that follow a thread's own arrivals only
constexpr int VOICES = EVERY_LANE ? 32 : 1;
static __device__ bool speaks(int lane) { return EVERY_LANE || lane == 0; }
// slots for blocks that are prepared here, and for those that a partner sends: powers of two, so that finding one is cheap
constexpr int SENT_SLOTS = CTAS == 2 ? 4 : 1, OWN_SLOTS = CTAS == 2 ? SLOTS - SENT_SLOTS : SLOTS;
static_assert((OWN_SLOTS & (OWN_SLOTS - 1)) == 0, "not a power of two");
static_assert(PREPARE_WARPS >= 1 && PREPARE_WARPS <= LOADERS - STATE_WARPS, "too few warps");
// warps that prepare a block together, each half of its channels. Write keys grow over an fp32 g in an order that allows one only
constexpr int TEAMS = PREPARE_WARPS / TEAM;
static_assert((TEAM == 1 || TEAM == 2 && sizeof(GATE_IN) == 2) && TEAMS * TEAM == PREPARE_WARPS, "no such teams");
// who waits for the slot of a block counts at most one round of it, so the ring of the sender is not the shorter one
static_assert(OWN_SLOTS >= TEAMS && OWN_SLOTS >= SENT_SLOTS, "too few slots");

__device__ constexpr int whole_lines(int bytes) { return (bytes + 1023) / 1024 * 1024; }

// One block of tokens, from the copy engine through the warps that prepare it to the state: raw tokens turn into factors where
// they lie. The first SENT bytes travel to the other thread block of a cluster
struct Slot {
    static constexpr int WQ = 0;                   // [KEY_SLICES][32][64] bf16, swizzled: rows k and rows q; then read keys and,
                                                   // unless registers keep them, queries in the block's units; then -W and Q
    static constexpr int TM = WQ + 2 * KEYS;       // [2][32][8] bf16: rows T, then rows M
    static constexpr int LOGS = TM + 1024;         // [KEY / 8][4][4] fp32: log2 decays of two channels each to the block's middle and
                                                   // from there to its end; then
    static constexpr int SCALE = LOGS;             // [KEY] fp32 at vector_place: decay of S between this block's reading and its writing
    static constexpr int EXIT = SCALE + 4 * KEY;   // [KEY] fp32 likewise: log2 decay from the block's middle to its end
    static constexpr int WRITE = whole_lines(EXIT + 4 * KEY);    // [KEY_SLICES][16][64] bf16, swizzled: g; then the write keys.
                                                   // An fp32 g is [KEY / 32][16][32], and the write keys grow over its first half
    static constexpr int G = WRITE;
    static constexpr int SENT = WRITE + KEYS;
    static constexpr int V = G + GATES;            // [16][64] bf16, swizzled: V, then O
    static constexpr int BYTES = V + TILE;
};

constexpr int ROW = 80;    // bytes from one row of 16 floats to the next where each lane reads its own: from different banks

// what a team keeps of the block it prepares
struct Scratch {
    static constexpr int A = 0;                    // [16][16] fp32: raw scores of read and write keys; then
    static constexpr int Z = A;                    // [2][32][8] bf16: the solved rows
    static constexpr int VECTORS = A + 1024;       // [3][16] fp32: beta/|k|^2, beta/|k|, scale/|q|
    static constexpr int SQUARES = VECTORS + 192;  // [16] fp32: a member's share of |q|^2
    static constexpr int SHIFT = SQUARES + 64;    // [KEY] fp32: what raw gates of the head are shifted by
    static constexpr int M = SHIFT + 4 * KEY;      // [16] rows of ROW bytes, fp32: scores of queries
    static constexpr int FOLD = M + 16 * ROW;      // [KEY] fp32 at vector_place: from the units of S to those the block reads in,
                                                   // where that is not SCALE
    static constexpr int BYTES = FOLD + (UNBOUNDED ? 4 * KEY : 0);
};
struct Shared {
    static constexpr int SCRATCH = SLOTS * Slot::BYTES;
    static constexpr int AHEAD = SCRATCH + TEAMS * Scratch::BYTES;    // [OWN_SLOTS][KEY] fp32: EXIT of the partner's blocks, which
                                                                      // is there long before their slot
    static constexpr int IDENTITY = AHEAD + (CTAS == 2 ? OWN_SLOTS * 4 * KEY : 0);    // [16] rows of ROW bytes, fp32
    static constexpr int PARTS = IDENTITY + 16 * ROW;    // [SLOTS] of 32 bytes: the part that begins with this block
    static constexpr int FULL = PARTS + 32 * SLOTS;    // mbarriers [SLOTS]: factors and V are there
    static constexpr int OUT = FULL + 8 * SLOTS;                // [SLOTS]: the state is done with it, and O is there
    static constexpr int EMPTY = OUT + 8 * SLOTS;               // [SLOTS]: nobody reads it any more
    static constexpr int EXITS = EMPTY + 8 * SLOTS;             // [OWN_SLOTS]: EXIT of a block is there, for who prepares the next one
    static constexpr int TOKENS = EXITS + 8 * OWN_SLOTS;            // [SLOTS]: raw tokens are there
    static constexpr int AGAIN = TOKENS + 8 * SLOTS;            // [TEAMS]: they are there again
    static constexpr int PARTIAL = AGAIN + 8 * TEAMS;   // [2]: for each loader, V of a block is there that is not whole
    static constexpr int PLACE = PARTIAL + 16; // [8 + BOUNDS] words: where the work of this thread block begins
    static constexpr int BYTES = PLACE + 32 + 4 * BOUNDS + 1024;    // and up to 1024 to the first line
};
static_assert(Shared::BYTES == SHARED_BYTES, "hopper.py asks for another amount of shared memory");

// A vector of KEY floats: a lane's channels 8j + 2t, + 1 (t = lane % 4) for the two j of a slice of 16 stand in 16 bytes, and the
// four t of a warp read from different banks
static __device__ unsigned vector_place(int slice, int lane) { return slice * 64 + lane % 4 * 16; }
