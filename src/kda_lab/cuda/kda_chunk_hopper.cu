// Kimi Delta Attention, forward, for Hopper: one kernel, no workspace in memory, the state in registers from the first token
// of a sequence to its last. Exact: nothing of the history is dropped, whatever the gates. The algebra is chunk_fused.
//
// A head is served by one thread block, or by a cluster of two that share the work. In each
//   state warpgroups    hold 64 rows of S each; block after block (16 tokens) they form [U; O] and add U^T write to S
//   prepare warpgroups  make the factors of the coming blocks in turns: decays, scores, norms, one triangular solve
//   the copy engine     brings q, k, g, v and takes o
// A stage of shared memory carries the factors of a block from one kind to the other; mbarriers say when it is full or empty.
// In a cluster each thread block prepares every other block of tokens and sends the factors to its partner.
//
// Constants that the compiler is given: KEY, VALUE (64 or 128); GATE (hopper_layout.cuh), GATE_IN, BETA_IN (float or
// __nv_bfloat16); UNBOUNDED (1: exponents may leave RANGE), L2NORM, BETA_SIGMOID (0 or 1); CTAS (1 or 2); STAGES; *_BYTES.
// q, k, v, o are bf16. Left to the caller: g <= 0 and no nan in tokens that exist.
#include <hopper_edges.cuh>
#include <hopper_prepare.cuh>
#include <hopper_state.cuh>

struct Args {
    TensorMap q, k, g, v, o;            // [B, heads, D / 64, T, 64] seen by the copy engine; q, k: heads of keys
    const BETA_IN* beta;
    long long beta_batch, beta_token, beta_head;    // strides in numbers
    const float *A_log, *dt_bias;       // [heads], [heads, KEY]; dt_bias null: 0
    const float* initial_state;         // [sequences, heads, VALUE, KEY]; null: 0
    float* final_state;                 // likewise; null: not wanted
    const long long* cu_seqlens;        // [increments + 1]; null: a sequence of T tokens a batch row
    __nv_bfloat16* out;                 // [B, T, heads, VALUE], plain; null: not wanted
    long long sequences, tokens, heads, group;      // tokens: T; head h reads the keys of head h / group
    float scale, lower_bound;
    // sequences beyond this number are the first ones again, without values and from the identity: what comes out is their
    // transition, S_end = S_0 transition + increment
    long long increments;
};
static_assert(sizeof(Args) == ARGS_BYTES, "hopper.py describes another argument block");

struct Work {               // a head of a sequence
    int sequence, token, length, batch, head, key_head, blocks;
    bool transition;
    __device__ int rows(int block) const { return length - C * block; }    // tokens of a block that exist, if below C
    __device__ int first(int block) const { return token + C * block; }
};

// Which sequence comes n-th: the longest first, so that no thread block starts late on a long one
ON_DEVICE long long nth_sequence(const Args& a, long long n, unsigned word) {
    if (!a.cu_seqlens || a.sequences > THREADS) return n;
    const int own = thread_index();
    const auto length_of = [&](long long m) {
        if (m >= a.increments) m -= a.increments;
        return a.cu_seqlens[m + 1] - a.cu_seqlens[m];
    };
    if (own < a.sequences) {
        const long long length = length_of(own);
        int before = 0;
        for (int m = 0; m < a.sequences; ++m) {
            const long long other = length_of(m);
            before += other > length || (other == length && m < own);
        }
        if (before == n) write(word, (unsigned)own);
    }
    __syncthreads();        // one thread has found it
    return read_word(word);
}

ON_DEVICE Work find_work(const Args& a, unsigned word) {
    const long long item = block_number() / CTAS;
    Work w;
    w.sequence = int(nth_sequence(a, item / a.heads, word));
    w.head = int(item % a.heads), w.key_head = w.head / int(a.group);
    w.transition = w.sequence >= a.increments;
    const int source = w.transition ? w.sequence - int(a.increments) : w.sequence;
    w.batch = a.cu_seqlens ? 0 : source;
    w.token = a.cu_seqlens ? int(a.cu_seqlens[source]) : 0;
    w.length = a.cu_seqlens ? int(a.cu_seqlens[source + 1]) - w.token : int(a.tokens);
    // a group of blocks prepared side by side is whole; blocks without tokens change nothing
    w.blocks = (w.length + C * AT_ONCE - 1) / (C * AT_ONCE) * AT_ONCE;
    return w;
}

// rank: of the thread block in its cluster; group: of the warpgroup among those of its role
struct Place {
    unsigned base;
    int rank, group, thread;    // thread: in the warpgroup
    __device__ int warp() const { return thread / 32; }
    __device__ int lane() const { return thread % 32; }
};

// of this head's state in an array [sequences, heads, VALUE, KEY]
ON_DEVICE long long state_at(const Args& a, const Work& w) { return (w.sequence * a.heads + w.head) * VALUE * KEY; }

// one thread: V of a block, and in a cluster the bytes that the partner will send if the block is his
ON_DEVICE void announce(const Args& a, const Work& w, const Place& p, int block) {
    const unsigned stage = p.base + block % STAGES * Stage::BYTES, full = p.base + Shared::FULL + block % STAGES * 8;
    const bool sent = CTAS == 2 && block % 2 != p.rank;
    arrive_and_expect(full, STATE_GROUPS * TILE + (sent ? Stage::SENT : 0));
    if (sent) arrive(full);
    load_box(stage + Stage::V, &a.v, w.first(block), CTAS == 2 ? p.rank : 0, w.head, w.batch, full);
}

// rows of o after the last sequence belong to nobody: its warpgroups make them zero
ON_DEVICE void clear_rest(const Args& a, const Work& w, int slice, int thread) {
    if (!a.out || !a.cu_seqlens || w.sequence != a.increments - 1) return;
    for (long long own = 8 * a.cu_seqlens[a.increments] + thread; own < 8 * a.tokens; own += 128)
        *(Four*)(a.out + (own / 8 * a.heads + w.head) * VALUE + 64 * slice + own % 8 * 8) = Four{0, 0, 0, 0};
}

ON_DEVICE void state_role(const Args& a, Work w, const Place& p) {
    const int slice = CTAS == 2 ? p.rank : p.group;     // which 64 rows of S
    State S;                // in units of the middle of the block that is being worked on
    float x[16];
    unsigned o[4];
    if (w.transition) w.length = 0;     // to this role: no values
    load_state(S, a.initial_state ? a.initial_state + state_at(a, w) : nullptr, w.transition, slice, p.warp(), p.lane());
    if (w.blocks) {
        if (CTAS == 2 && p.thread == 0)
            for (int c = 0; c < STAGES && c < w.blocks; ++c) announce(a, w, p, c);
        #pragma unroll
        for (int i = 0; i < 16; ++i) x[i] = 0;
        wait(p.base + Shared::FULL, 0);
        multiply_values(x, p.base, p.group, p.warp(), p.lane(), w.rows(0));
        const Factor f = read_factor(p.base + Stage::ENTRY, p.lane());
        wgmma_wait<0>(), pin(x);
        multiply_state(S, x, f, p.base);
    }
    int next = 0, tile = 0;
    unsigned parity = 0;    // of the next stage's phase
    // turned by half a step: X of a block is on its way when the loop enters, so that the scaling of S ends each round and
    // the compiler can follow which registers the tensor cores own
    for (int c = 0; c < w.blocks; ++c) {
        const int now = next;
        const unsigned stage = p.base + now * Stage::BYTES;
        if (++next == STAGES) next = 0, parity ^= 1;
        update(S, x, o, stage, p.lane());
        if (c + 1 < w.blocks) {
            const unsigned coming = p.base + next * Stage::BYTES;
            wait(p.base + Shared::FULL + 8 * next, parity);
            // loads before products: a load behind them waits for them
            Factor f = read_factor(coming + Stage::ENTRY, p.lane());
            if (CTAS == 2) {    // in one thread block the prepare warpgroups have multiplied the two
                const Factor e = read_factor(stage + Stage::EXIT, p.lane());
                #pragma unroll
                for (int u = 0; u < KEY / 16; ++u)
                    f.x[u].x *= e.x[u].x, f.x[u].y *= e.x[u].y, f.x[u].z *= e.x[u].z, f.x[u].w *= e.x[u].w;
            }
            multiply_values(x, coming, p.group, p.warp(), p.lane(), w.rows(c + 1));
            wgmma_wait<0>(), pin(S), pin(x);
            if (CTAS == 1 && p.lane() == 0) arrive(p.base + Shared::EMPTY + 8 * now);
            multiply_state(S, x, f, coming);
        } else {
            wgmma_wait<0>(), pin(S);
            scale(S, read_factor(stage + Stage::EXIT, p.lane()));
        }
        // behind the product with the state. A tile is free again three blocks later
        const unsigned out = p.base + Shared::OUT + (3 * p.group + tile) * TILE;
        if (++tile == 3) tile = 0;
        if (a.out) write_out(o, out, p.warp(), p.lane());
        barrier(1 + PREPARE_GROUPS + p.group, 128);    // the tile is complete
        if (a.out && w.rows(c) >= C) {
            if (p.thread == 0) store_box(&a.o, w.first(c), slice, w.head, w.batch, out), wait_for_stores<1>();
        } else if (a.out) {
            const long long row = (long long)w.batch * a.tokens + w.first(c);
            copy_rows(a.out + (row * a.heads + w.head) * VALUE + 64 * slice, a.heads * VALUE, out, w.rows(c), p.thread);
        }
        // past the barrier: every warp is done with the stage
        if (CTAS == 2 && p.thread == 0 && c + STAGES < w.blocks) {
            const unsigned empty = p.base + Shared::EMPTY + 8 * now;
            announce(a, w, p, c + STAGES);
            arrive(empty), arrive_there(in_block(empty, 1 - p.rank));
        }
    }
    if (p.thread == 0) wait_for_stores<0>();
    if (a.final_state) store_state(S, a.final_state + state_at(a, w), slice, p.warp(), p.lane());
    clear_rest(a, w, slice, p.thread);
}

// the i-th block that a prepare warpgroup makes
ON_DEVICE int own_block(const Place& p, int i) {
    return ((i / AT_ONCE * PREPARE_GROUPS + p.group) * AT_ONCE + i % AT_ONCE) * CTAS + p.rank;
}

ON_DEVICE void load_tokens(const Args& a, const Work& w, const Place& p, unsigned group, int i) {
    const int slot = i % 2, block = own_block(p, i);
    const unsigned full = p.base + Shared::INPUTS + 8 * (2 * p.group + slot), to = group + Group::INPUT + slot * Input::BYTES;
    if (block >= w.blocks) return;
    arrive_and_expect(full, Input::BYTES);
    load_box(to + Input::Q, &a.q, w.first(block), 0, w.key_head, w.batch, full);
    load_box(to + Input::K, &a.k, w.first(block), 0, w.key_head, w.batch, full);
    load_box(to + Input::G, &a.g, w.first(block), 0, w.head, w.batch, full);
}

// raw beta of token lane % 16 of block i + lane / 16
ON_DEVICE unsigned load_beta(const Args& a, const Work& w, const Place& p, int i) {
    const int block = own_block(p, i + (AT_ONCE == 2 ? p.lane() / 16 : 0)), row = p.lane() % 16;
    if (row >= w.rows(block)) return 0;
    const long long token = w.first(block) + row;
    return fetch_bits<sizeof(BETA_IN)>(a.beta + w.batch * a.beta_batch + token * a.beta_token + w.head * a.beta_head);
}

ON_DEVICE void prepare_role(const Args& a, const Work& w, const Place& p) {
    const int t = p.thread, number = 1 + p.group;
    const unsigned group = p.base + Shared::GROUPS + p.group * Group::BYTES;
    const Own own(p.warp(), p.lane());
    const Gate gate(a.A_log, a.dt_bias, a.lower_bound, w.head, own);
    if (t == 0)
        for (int i = 0; i < 2; ++i) load_tokens(a, w, p, group, i);
    for (int i = t; i < AT_ONCE * 16 * 20; i += 128)     // right hand sides of T: -(-I)
        write(group + Group::SCRATCH + i / 320 * Scratch::BYTES + Scratch::H + i % 320 * 4, i % 320 / 20 == i % 20 ? -1.f : 0.f);
    unsigned beta_bits = load_beta(a, w, p, 0), next_beta = 0;
    for (int i = 0; own_block(p, i) < w.blocks; i += AT_ONCE) {
        unsigned in[AT_ONCE], scratch[AT_ONCE], stage[AT_ONCE];
        bool too_strong = false;
        #pragma unroll
        for (int b = 0; b < AT_ONCE; ++b) {
            const int c = own_block(p, i + b), s = c % STAGES, slot = (i + b) % 2;
            stage[b] = p.base + s * Stage::BYTES;
            scratch[b] = group + Group::SCRATCH + b * Scratch::BYTES;
            in[b] = group + Group::INPUT + slot * Input::BYTES;
            if (c >= STAGES) wait(p.base + Shared::EMPTY + 8 * s, (c / STAGES - 1) & 1);
            if (CTAS == 1 && t == 0) announce(a, w, p, c);
            if (b == 0) next_beta = load_beta(a, w, p, i + AT_ONCE);
            wait(p.base + Shared::INPUTS + 8 * (2 * p.group + slot), (i + b) / 2 & 1);
            if (own.some()) {
                if (w.rows(c) < C) clear_missing(in[b], own, w.rows(c));
                too_strong |= own.half ? middle_units<1>(in[b], scratch[b], stage[b], own, gate)
                                       : middle_units<0>(in[b], scratch[b], stage[b], own, gate);
            }
        }
        const float raw = sizeof(BETA_IN) == 4 ? __uint_as_float(beta_bits) : low(beta_bits);
        const bool there = p.lane() % 16 < w.rows(own_block(p, i + (AT_ONCE == 2 ? p.lane() / 16 : 0)));
        const float beta = !there ? 0 : BETA_SIGMOID ? reciprocal(1 + exp2_unit(-LOG2_E * raw)) : raw;
        beta_bits = next_beta;
        // read keys, queries and write keys are complete
        bool edges = false;
        if (UNBOUNDED) edges = barrier_any(number, 128, too_strong); else barrier(number, 128);
        if (CTAS == 1 && !UNBOUNDED && t == 0)
            for (int b = 0; b < AT_ONCE; ++b) arrive(p.base + Shared::EXITS + own_block(p, i + b) % STAGES * 8);
        if (edges) {
            if (own.some()) sum_gates(in[0], scratch[0], own, gate);
            barrier(number, 128);        // sums are complete
            pair_scores(in[0], scratch[0], p.warp(), p.lane());
        }
        // the roles rotate, so that no scheduler always has the solve
        const int role = (p.warp() + i / AT_ONCE) % 4;
        scores<AT_ONCE>(in, scratch, stage, role, beta, a.scale, p.lane(), edges);
        barrier(number, 128);            // scores and norms are complete; without edges nobody reads raw tokens any more
        if (!UNBOUNDED && t == 0)
            for (int b = 0; b < AT_ONCE; ++b) load_tokens(a, w, p, group, i + 2 + b);
        if (edges && own.some()) edge_units(in[0], scratch[0], stage[0], own);
        if (AT_ONCE == 2 ? role % 2 == 0 : role == 0) {
            const int b = AT_ONCE == 2 ? role / 2 : 0;
            row_solve(b ? scratch[AT_ONCE - 1] : scratch[0], (b ? stage[AT_ONCE - 1] : stage[0]) + Stage::TM, p.lane());
        }
        barrier(number, 128);            // the solved rows are complete
        if (UNBOUNDED && t == 0) {
            load_tokens(a, w, p, group, i + 2);
            write(stage[0] + Stage::EDGES, (unsigned)edges);
            if (CTAS == 1) arrive(p.base + Shared::EXITS + own_block(p, i) % STAGES * 8);
        }
        #pragma unroll
        for (int b = 0; b < AT_ONCE; ++b) {
            const int c = own_block(p, i + b), before = (c + STAGES - 1) % STAGES;
            fold(scratch[b], stage[b], p.warp(), p.lane());
            if (CTAS == 1 && c > 0) {    // S leaves the block before in the units of its middle
                wait(p.base + Shared::EXITS + 8 * before, (c - 1) / STAGES & 1);
                const unsigned f = stage[b] + Stage::ENTRY + 4 * t, e = p.base + before * Stage::BYTES + Stage::EXIT + 4 * t;
                if (t < KEY) write(f, read_float(f) * read_float(e));
            }
        }
        fence_async();
        if (CTAS == 1) {
            __syncwarp();
            if (p.lane() == 0)
                for (int b = 0; b < AT_ONCE; ++b) arrive(p.base + Shared::FULL + own_block(p, i + b) % STAGES * 8);
        }
        barrier(number, 128);            // nobody reads the scratch any more
        if (CTAS == 2 && t == 0) {
            const unsigned full = p.base + Shared::FULL + own_block(p, i) % STAGES * 8;
            arrive(full);
            copy_there(in_block(stage[0], 1 - p.rank), stage[0], Stage::SENT, in_block(full, 1 - p.rank));
        }
    }
}

#if CTAS == 2
#define CLUSTER __cluster_dims__(2, 1, 1)
#else
#define CLUSTER
#endif
// one thread block, or two: one head of one sequence
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1) kda_chunk_hopper(const __grid_constant__ Args a) {
    extern __shared__ __align__(16) unsigned char memory[];
    const unsigned base = whole_lines(shared_address(memory));
    if (thread_index() == 0) {
        for (int s = 0; s < STAGES; ++s) {
            // factors from the four warps or from one thread, and V; then the readers: warps here, or one thread in each block
            mbarrier_init(base + Shared::FULL + 8 * s, CTAS == 1 ? 5 : 2);
            mbarrier_init(base + Shared::EMPTY + 8 * s, CTAS == 1 ? 4 * STATE_GROUPS : 2);
            mbarrier_init(base + Shared::EXITS + 8 * s, 1);
        }
        for (int i = 0; i < 2 * PREPARE_GROUPS; ++i) mbarrier_init(base + Shared::INPUTS + 8 * i, 1);
        mbarriers_are_ready();
    }
    const Work w = find_work(a, base + Shared::PLACE);
    __syncthreads();            // mbarriers are there for every thread
    if (CTAS == 2) cluster_barrier();    // and for the partner
    // the same in all lanes, which the compiler cannot see
    const int group = from_lane(thread_index() / 128, 0);
    const int rank = CTAS == 2 ? cluster_rank() : 0;
    if (group < STATE_GROUPS) {
        if (THREADS == 512) more_registers<STATE_REGISTERS>();
        state_role(a, w, Place{base, rank, group, thread_index() % 128});
    } else {
        if (THREADS == 512) fewer_registers<256 - STATE_REGISTERS>();
        prepare_role(a, w, Place{base, rank, group - STATE_GROUPS, thread_index() % 128});
    }
    if (CTAS == 2) cluster_barrier();    // nobody leaves while the partner may still write here
}
