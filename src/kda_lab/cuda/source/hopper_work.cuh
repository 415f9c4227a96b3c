// Who does what: the blocks of all sequences of all heads in one row, cut into equal ranges, a range for each cluster. A sequence
// that a cut goes through is begun by the one before the cut and ended by the one behind it; the state passes through memory.
// Everyone works from the end of its range to the start, sequence by sequence: so the beginning of a cut one is done first and its
// end last. Ranges are no shorter than the longest sequence, so nobody waits; only the last range may be shorter, by what is left
// over: its owner waits for the difference, and still ends no later than the others.
#pragma once
#include <hopper_layout.cuh>
#include <hopper.cuh>

struct Args {
    TensorMap q, k, g, v, o;            // [B, heads, D / 64, T, 64] seen by the copy engine; q, k: heads of keys
    const BETA_IN* beta;
    long long beta_batch, beta_token, beta_head;    // strides in numbers
    const float *A_log, *dt_bias;       // [heads], [heads, KEY]; dt_bias null: 0
    const float* initial_state;         // [starts, heads, VALUE, KEY]; the other sequences begin at 0
    float* final_state;                 // [sequences, heads, VALUE, KEY]; null: not wanted
    // of the sequence that the cut behind a range goes through: its state in the units of the middle of the last block, [clusters,
    // VALUE, KEY]; that block's EXIT, [clusters, CTAS, KEY]; whether both are there, [clusters, CTAS], 0 before. So a cut does not
    // change a bit of what comes out; but where some blocks need edges and others do not, a warp's last block decides the form
    float *passed_state, *passed_exit;
    unsigned* passed;
    const long long* cu_seqlens;        // [increments + 1]; null: a sequence of T tokens a batch row
    __nv_bfloat16* out;                 // [B, T, heads, VALUE], plain; null: not wanted
    long long sequences, tokens, heads, group;      // tokens: T; head h reads the keys of head h / group
    // sequences from this number on are those from the second on again, without values and from the identity: what comes out is
    // their transition, S_end = S_0 transition + increment
    long long increments, starts, clusters;
    // states wanted on the way: rows of [B T], rising, each a whole number of blocks behind the start of its sequence; null: none
    const long long* checkpoints;
    float* checkpoint_states;           // [checkpoint_count, heads, VALUE, KEY]
    long long checkpoint_count;
    float scale, lower_bound;
};
static_assert(sizeof(Args) == ARGS_BYTES, "hopper.py describes another argument block");

// where a range begins, from its end: found by one warp, kept in shared memory at `place`, the first bounds of sequences behind it
struct Range {
    int low, high;         // blocks of this cluster
    int head, sequence;    // that block high - 1 belongs to
    int before;            // blocks before that sequence of that head
    static constexpr int BYTES = 32;
};
ON_DEVICE int smaller(int x, int y) { return x < y ? x : y; }
ON_DEVICE int larger(int x, int y) { return x < y ? y : x; }
ON_DEVICE int source_of(const Args& a, int sequence) { return sequence < a.increments ? sequence : sequence - int(a.increments) + 1; }
// where a sequence begins: from shared memory if it is one of the first
ON_DEVICE int bound(const Args& a, unsigned place, int n) {
    return n < BOUNDS ? int(read_word(place + Range::BYTES + 4 * n)) : int(a.cu_seqlens[n]);
}
ON_DEVICE int length_of(const Args& a, unsigned place, int sequence) {
    const int n = source_of(a, sequence);
    return a.cu_seqlens ? bound(a, place, n + 1) - bound(a, place, n) : int(a.tokens);
}
// at least one: the state of an empty sequence passes through a block without tokens
ON_DEVICE int blocks_in(int length) { return length > C ? (length + C - 1) / C : 1; }

// a stretch of blocks of one sequence and head, up to the next checkpoint or the end of the range
struct Part {
    int sequence, head, key_head, batch;
    int token, length;     // the first one of the part in its batch row; from there to the end of the sequence
    int blocks;
    bool first, last;      // begins the sequence, ends it
    bool resumes, passes;  // goes on from a checkpoint before it, with the state at hand; the state goes on to the next cluster
    bool transition;
    int checkpoint;        // whose state is there at its end; -1: none
    bool more;             // another part follows
    __device__ int rows(int block) const { return length - C * block; }    // tokens of a block that exist, if below C
    __device__ int row(int block) const { return token + C * block; }
};

// as it stands in shared memory
ON_DEVICE void write_part(unsigned a, const Part& x) {
    const unsigned marks = x.first | x.last << 1 | x.resumes << 2 | x.passes << 3 | x.transition << 4 | x.more << 5;
    write(a, x.sequence, x.head, x.batch, x.token), write(a + 16, x.length, x.blocks, x.checkpoint, marks);
}
ON_DEVICE Part read_part(unsigned a) {
    Part x;
    x.sequence = read_word(a), x.head = read_word(a + 4), x.batch = read_word(a + 8), x.token = read_word(a + 12);
    x.length = read_word(a + 16), x.blocks = read_word(a + 20), x.checkpoint = read_word(a + 24);
    const unsigned marks = read_word(a + 28);
    x.first = marks & 1, x.last = marks & 2, x.resumes = marks & 4, x.passes = marks & 8, x.transition = marks & 16, x.more = marks & 32;
    return x;
}

ON_DEVICE void find_range(const Args& a, int cluster, unsigned place, int lane) {
    const int heads = int(a.heads), sequences = int(a.sequences), each = (sequences + 31) / 32;
    if (a.cu_seqlens)
        for (int n = lane; n < BOUNDS && n <= a.increments; n += 32) write(place + Range::BYTES + 4 * n, (unsigned)a.cu_seqlens[n]);
    __syncwarp();
    // blocks of a head: of this lane's sequences, before them, of all
    int sum = 0, longest = 0, before = 0, whole, sequence = 0;
    if (a.cu_seqlens) {
        for (int n = lane * each; n < smaller(sequences, (lane + 1) * each); ++n) {
            const int blocks = blocks_in(length_of(a, place, n));
            sum += blocks, longest = larger(longest, blocks);
        }
        int upto = sum;
        for (int i = 1; i < 32; i *= 2) {
            const int x = from_lane(upto, (lane + 32 - i) % 32), y = from_lane(longest, lane ^ i);
            if (lane >= i) upto += x;
            longest = larger(longest, y);
        }
        before = upto - sum, whole = from_lane(upto, 31);
    } else {
        longest = blocks_in(int(a.tokens)), whole = longest * sequences;
    }
    const int total = whole * heads, share = larger((total + int(a.clusters) - 1) / int(a.clusters), longest);
    const int low = smaller(cluster * share, total), high = smaller(low + share, total), last = (high - 1) % whole;
    bool mine = lane == 0;
    if (!a.cu_seqlens) {
        sequence = last / longest, before = sequence * longest;
    } else if ((mine = before <= last && last < before + sum)) {
        sequence = lane * each;
        for (int blocks; last >= before + (blocks = blocks_in(length_of(a, place, sequence))); before += blocks) ++sequence;
    }
    if (mine) {
        write(place, (unsigned)low), write(place + 4, (unsigned)high), write(place + 8, (unsigned)((high - 1) / whole));
        write(place + 12, (unsigned)sequence), write(place + 16, (unsigned)(high - 1 - last + before));
    }
}

ON_DEVICE bool has_work(unsigned place) { return read_word(place) < read_word(place + 4); }

// the stretches of a range, the last one first, and in each of them the parts in order
struct Walk {
    const Args& a;
    unsigned place;
    Range left;
    Part part;
    int start;             // blocks of the range before this part, in the order of work
    int rest;              // blocks of the stretch behind this part
    bool whole;            // the stretch ends its sequence
    __device__ Walk(const Args& a, unsigned place) : a(a), place(place), start(0), rest(0), whole(true) {
        left = {int(read_word(place)), int(read_word(place + 4)), int(read_word(place + 8)), int(read_word(place + 12)),
                int(read_word(place + 16))};
        part.blocks = 0;
    }
    // the next one; false: none is left
    __device__ bool next() {
        start += part.blocks;
        if (CHECKPOINTS && rest > 0) {      // the stretch goes on behind a checkpoint
            part.first = false, part.resumes = true;
            part.token += C * part.blocks, part.length -= C * part.blocks;
            return take();
        }
        if (left.high <= left.low) return false;
        while (left.high <= left.before) {
            if (left.sequence == 0) left.sequence = int(a.sequences), --left.head;
            left.before -= blocks_in(length_of(a, place, --left.sequence));
        }
        const int length = length_of(a, place, left.sequence), source = source_of(a, left.sequence);
        const int from = larger(left.before, left.low);
        part.sequence = left.sequence, part.head = left.head, part.key_head = left.head / int(a.group);
        part.batch = a.cu_seqlens ? 0 : source;
        part.token = (a.cu_seqlens ? bound(a, place, source) : 0) + C * (from - left.before);
        part.length = length - C * (from - left.before);
        part.first = from == left.before, whole = left.high == left.before + blocks_in(length);
        part.resumes = false;
        part.transition = left.sequence >= a.increments;
        rest = left.high - from;
        left.high = from;
        return take();
    }
    // what is left of the stretch, up to its next checkpoint
    __device__ bool take() {
        part.blocks = rest, rest = 0, part.checkpoint = -1;
        if (CHECKPOINTS) {
            const int here = part.batch * int(a.tokens) + part.token;    // rows of an array fit 31 bits
            int ahead = 0, n = 0;
            for (; n < int(a.checkpoint_count); ++n)
                if ((ahead = int(a.checkpoints[n]) - here) > 0) break;
            // one behind the end is another sequence's
            if (ahead > 0 && ahead <= part.length && ahead <= C * part.blocks) {
                const int blocks = (ahead + C - 1) / C;
                part.checkpoint = n, rest = part.blocks - blocks, part.blocks = blocks;
            }
        }
        part.last = whole && rest == 0, part.passes = !whole && rest == 0;
        part.more = left.high > left.low || rest > 0;
        return true;
    }
    // the part that block n of the work belongs to, not before the last one asked for; false: there are fewer
    __device__ bool find(int n) {
        while (n >= start + part.blocks)
            if (!next()) return false;
        return true;
    }
};
