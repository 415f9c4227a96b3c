// Who does what: the blocks of all heads of all sequences in one row, cut into equal ranges, a range for each cluster. A head that
// a cut goes through is begun by the one before the cut and ended by the one behind it; the state passes through memory. Everyone
// works from the end of its range to the start, head by head: so the beginning of a cut head is done first, its end last, and as
// no range is shorter than the longest head, nobody waits.
#pragma once
#include <hopper_layout.cuh>
#include <hopper.cuh>

struct Args {
    TensorMap q, k, g, v, o;            // [B, heads, D / 64, T, 64] seen by the copy engine; q, k: heads of keys
    const BETA_IN* beta;
    long long beta_batch, beta_token, beta_head;    // strides in numbers
    const float *A_log, *dt_bias;       // [heads], [heads, KEY]; dt_bias null: 0
    const float* initial_state;         // [sequences, heads, VALUE, KEY]; null: 0
    float* final_state;                 // likewise; null: not wanted
    float* passed_state;                // [clusters, VALUE, KEY]: of the head that the cut behind a range goes through
    unsigned* passed;                   // [clusters, CTAS]: it is there; 0 before
    const long long* cu_seqlens;        // [increments + 1]; null: a sequence of T tokens a batch row
    __nv_bfloat16* out;                 // [B, T, heads, VALUE], plain; null: not wanted
    long long sequences, tokens, heads, group;      // tokens: T; head h reads the keys of head h / group
    // sequences beyond this number are the first ones again, without values and from the identity: what comes out is their
    // transition, S_end = S_0 transition + increment
    long long increments, clusters;
    float scale, lower_bound;
};
static_assert(sizeof(Args) == ARGS_BYTES, "hopper.py describes another argument block");

ON_DEVICE int smaller(int x, int y) { return x < y ? x : y; }
ON_DEVICE int larger(int x, int y) { return x < y ? y : x; }
ON_DEVICE int source_of(const Args& a, int sequence) { return sequence < a.increments ? sequence : sequence - int(a.increments); }
ON_DEVICE int length_of(const Args& a, int sequence) {
    const int n = source_of(a, sequence);
    return a.cu_seqlens ? int(a.cu_seqlens[n + 1] - a.cu_seqlens[n]) : int(a.tokens);
}
// at least one: the state of an empty sequence passes through a block without tokens
ON_DEVICE int blocks_in(int length) { return length > C ? (length + C - 1) / C : 1; }

// a stretch of blocks of one head
struct Part {
    int sequence, head, key_head, batch;
    int token, length;     // the first one of the part in its batch row; from there to the end of the sequence
    int blocks;
    bool first, last;      // begins the sequence, ends it
    bool transition;
    __device__ int rows(int block) const { return length - C * block; }    // tokens of a block that exist, if below C
    __device__ int row(int block) const { return token + C * block; }
};

// where ranges begin: found by one warp, kept in shared memory
struct Range {
    int low, high;         // blocks of this cluster
    int sequence, before;  // the one that block high - 1 belongs to, and the blocks before its first head
};
ON_DEVICE void find_range(const Args& a, int cluster, unsigned to, int lane) {
    const int heads = int(a.heads), sequences = int(a.sequences), each = (sequences + 31) / 32;
    int sum = 0, longest = 0, sequence = 0, before = 0, total;
    if (a.cu_seqlens) {
        for (int n = lane * each; n < smaller(sequences, (lane + 1) * each); ++n) {
            const int blocks = blocks_in(length_of(a, n));
            sum += blocks, longest = larger(longest, blocks);
        }
        int upto = sum;
        for (int i = 1; i < 32; i *= 2) {
            const int x = from_lane(upto, (lane + 32 - i) % 32), y = from_lane(longest, lane ^ i);
            if (lane >= i) upto += x;
            longest = larger(longest, y);
        }
        before = upto - sum, total = from_lane(upto, 31) * heads;
    } else {
        longest = blocks_in(int(a.tokens)), total = longest * sequences * heads;
    }
    const int share = larger((total + int(a.clusters) - 1) / int(a.clusters), longest);
    const int low = smaller(cluster * share, total), high = smaller(low + share, total), last = (high - 1) / heads;
    bool mine = lane == 0;
    if (!a.cu_seqlens) {
        sequence = last / longest, before = sequence * longest;
    } else if ((mine = before <= last && last < before + sum)) {
        sequence = lane * each;
        for (int blocks; last >= before + (blocks = blocks_in(length_of(a, sequence))); before += blocks) ++sequence;
    }
    if (mine) {
        write(to, (unsigned)low), write(to + 4, (unsigned)high);
        write(to + 8, (unsigned)sequence), write(to + 12, (unsigned)(before * heads));
    }
}

// the parts of a range, last head first
struct Walk {
    const Args& a;
    Range left;
    Part part;
    int start;             // blocks of the range before this part, in the order of work
    __device__ Walk(const Args& a, unsigned place) : a(a), start(0) {
        left = {int(read_word(place)), int(read_word(place + 4)), int(read_word(place + 8)), int(read_word(place + 12))};
        part.blocks = 0;
    }
    // the next one; false: none is left
    __device__ bool next() {
        start += part.blocks;
        if (left.high <= left.low) return false;
        const int heads = int(a.heads);
        while (left.high <= left.before) --left.sequence, left.before -= heads * blocks_in(length_of(a, left.sequence));
        const int length = length_of(a, left.sequence), whole = blocks_in(length);
        part.head = (left.high - 1 - left.before) / whole;
        const int begin = left.before + part.head * whole, from = larger(begin, left.low);
        const int source = source_of(a, left.sequence);
        part.sequence = left.sequence, part.key_head = part.head / int(a.group);
        part.batch = a.cu_seqlens ? 0 : source;
        part.token = (a.cu_seqlens ? int(a.cu_seqlens[source]) : 0) + C * (from - begin);
        part.length = length - C * (from - begin);
        part.blocks = left.high - from;
        part.first = from == begin, part.last = left.high == begin + whole;
        part.transition = left.sequence >= a.increments;
        left.high = from;
        return true;
    }
    // the part that block n of the work belongs to, not before the last one asked for; false: there are fewer
    __device__ bool find(int n) {
        while (n >= start + part.blocks)
            if (!next()) return false;
        return true;
    }
};
