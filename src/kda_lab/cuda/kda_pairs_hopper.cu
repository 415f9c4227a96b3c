// Kimi Delta Attention, forward, for Hopper: one kernel, no workspace in memory, the state in registers from the first token
// of a sequence to its last. Exact: nothing of the history is dropped, whatever the gates. The algebra is chunk_fused.
//
// A head is served by one thread block, or by a cluster of two that share the work. In each
//   state warpgroups    hold 64 rows of S each; pair after pair (two blocks of 16 tokens) they form [U; O] and add U^T write to S
//   prepare warpgroups  make the factors of the coming pairs in turns: decays, scores, norms, one triangular solve a block
//   the copy engine     brings q, k, g, v and takes o
// A stage of shared memory carries the factors of a pair from one kind to the other; mbarriers say when it is full or empty.
// In a cluster each thread block prepares every other pair and sends the factors to its partner.
//
// Constants that the compiler is given: KEY, VALUE (64 or 128); GATE (hopper_layout.cuh), GATE_IN, BETA_IN (float or
// __nv_bfloat16); UNBOUNDED (1: exponents may leave RANGE), L2NORM, BETA_SIGMOID (0 or 1); CTAS (1 or 2); STAGES; *_BYTES.
// q, k, v, o are bf16. Left to the caller: g <= 0 and no nan in tokens that exist.
#include <hopper_pairs/edges.cuh>
#include <hopper_pairs/prepare.cuh>
#include <hopper_pairs/state.cuh>

struct Args {
    TensorMap q, k, g, v, o;            // [B, heads, D / 64, T, 64] seen by the copy engine; q, k: heads of keys
    const BETA_IN* beta;
    long long beta_batch, beta_token, beta_head;    // strides in numbers
    const float *A_log, *dt_bias;       // [heads], [heads, KEY]; dt_bias null: 0
    const float* initial_state;         // [sequences, heads, VALUE, KEY]; null: 0
    float* final_state;                 // likewise; null: not wanted
    const long long* cu_seqlens;        // [sequences + 1]; null: a sequence of T tokens a batch row
    __nv_bfloat16* out;                 // [B, T, heads, VALUE], plain
    long long sequences, tokens, heads, group;      // tokens: T; head h reads the keys of head h / group
    float scale, lower_bound;
    long long unused;                   // up to a multiple of 64 bytes
};
static_assert(sizeof(Args) == ARGS_BYTES, "hopper.py describes another argument block");

struct Work {               // a head of a sequence
    long long sequence;
    int token, length, batch, head, key_head, pairs;
    __device__ int rows(int pair) const { return length - PAIR * pair; }    // tokens of a pair that exist, if below PAIR
    __device__ int first(int pair) const { return token + PAIR * pair; }
};

// Which sequence comes n-th: the longest first, so that no thread block starts late on a long one
ON_DEVICE long long nth_sequence(const Args& a, long long n, unsigned word) {
    if (!a.cu_seqlens || a.sequences > THREADS) return n;
    const int own = thread_index();
    if (own < a.sequences) {
        const long long length = a.cu_seqlens[own + 1] - a.cu_seqlens[own];
        int before = 0;
        for (int m = 0; m < a.sequences; ++m) {
            const long long other = a.cu_seqlens[m + 1] - a.cu_seqlens[m];
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
    w.sequence = nth_sequence(a, item / a.heads, word);
    w.head = int(item % a.heads), w.key_head = w.head / int(a.group);
    w.batch = a.cu_seqlens ? 0 : int(w.sequence);
    w.token = a.cu_seqlens ? int(a.cu_seqlens[w.sequence]) : 0;
    w.length = a.cu_seqlens ? int(a.cu_seqlens[w.sequence + 1]) - w.token : int(a.tokens);
    w.pairs = (w.length + PAIR - 1) / PAIR;
    return w;
}

// rank: of the thread block in its cluster; group: of the warpgroup among those of its role
// thread: in the warpgroup, read anew where it is used, as all that follows from it would take registers for the whole loop
struct Place {
    unsigned base;
    int rank, group, thread;
    __device__ int me() const { return fresh(thread); }
    __device__ int warp() const { return me() / 32; }
    __device__ int lane() const { return me() % 32; }
};

// one thread: V of a pair, and in a cluster the bytes that the partner will send if the pair is his
ON_DEVICE void announce(const Args& a, const Work& w, const Place& p, int pair) {
    const unsigned stage = p.base + pair % STAGES * Stage::BYTES, full = p.base + Shared::FULL + pair % STAGES * 8;
    const bool sent = CTAS == 2 && pair % 2 != p.rank;
    arrive_and_expect(full, STATE_GROUPS * TILE + (sent ? Stage::SENT : 0));
    if (sent) arrive(full);
    load_box(stage + Stage::V, &a.v, w.first(pair), CTAS == 2 ? p.rank : 0, w.head, w.batch, full);
}

// rows 64 slice .. of this head's state in an array [sequences, heads, VALUE, KEY]
ON_DEVICE long long state_at(const Args& a, const Work& w) { return (w.sequence * a.heads + w.head) * VALUE * KEY; }

ON_DEVICE void state_role(const Args& a, const Work& w, const Place& p) {
    const int slice = CTAS == 2 ? p.rank : p.group;     // which 64 rows of S
    State S;                // in units of the middle of the last block that it has seen
    float x[32];
    unsigned o[2][4];
    load_state(S, a.initial_state ? a.initial_state + state_at(a, w) : nullptr, slice, p.warp(), p.lane());
    if (w.pairs) {
        if (CTAS == 2 && p.me() == 0)
            for (int c = 0; c < STAGES && c < w.pairs; ++c) announce(a, w, p, c);
        #pragma unroll
        for (int i = 0; i < 32; ++i) x[i] = 0;
        wait(p.base + Shared::FULL, 0);
        multiply_values(x, p.base, p.group, p.warp(), p.lane(), w.rows(0));
        wgmma_wait<0>(), pin(x);
        multiply_state(S, x, p.base);
        scale(S, p.base + Stage::SCALE, p.lane());
    }
    int next = 0, tile = 0;
    unsigned parity = 0;    // of the next stage's phase
    // turned by half a step: X of a pair is on its way when the loop enters, so that the scaling of S ends each round and
    // the compiler can follow which registers the tensor cores own
    for (int c = 0; c < w.pairs; ++c) {
        const unsigned stage = p.base + next * Stage::BYTES;
        if (++next == STAGES) next = 0, parity ^= 1;
        update(S, x, o, stage);
        if (c + 1 < w.pairs) {
            const unsigned coming = p.base + next * Stage::BYTES;
            wait(p.base + Shared::FULL + 8 * next, parity);
            multiply_values(x, coming, p.group, p.warp(), p.lane(), w.rows(c + 1));
            wgmma_wait<0>(), pin(S), pin(x);
            if (CTAS == 1 && p.lane() == 0) arrive(p.base + Shared::LEFT + c % SLOTS * 8);
            multiply_state(S, x, coming);
            scale(S, coming + Stage::SCALE, p.lane());    // behind the product, which took S as bf16
        } else {
            wgmma_wait<0>(), pin(S);
            scale(S, stage + Stage::EXIT, p.lane());
        }
        const unsigned out = p.base + Shared::OUT + (p.group * OUT_TILES + tile) * TILE;
        if (++tile == OUT_TILES) tile = 0;
        if (p.me() == 0) wait_for_stores<OUT_TILES - 1>();
        barrier(1 + PREPARE_GROUPS + p.group, 128);    // the copy engine has read what stood in the tile
        write_out(o, out, p.warp(), p.lane());
        fence_async();
        barrier(1 + PREPARE_GROUPS + p.group, 128);    // the tile is complete, and every warp is done with the stage
        if (w.rows(c) >= PAIR) {
            if (p.me() == 0) store_box(&a.o, w.first(c), slice, w.head, w.batch, out);
        } else {
            const long long row = (long long)w.batch * a.tokens + w.first(c);
            copy_rows(a.out + (row * a.heads + w.head) * VALUE + 64 * slice, a.heads * VALUE, out, w.rows(c), p.me());
        }
        if (CTAS == 2 && p.me() == 0 && c + STAGES < w.pairs) {
            const unsigned left = p.base + Shared::LEFT + c % SLOTS * 8;
            announce(a, w, p, c + STAGES);
            arrive(left), arrive_there(in_block(left, 1 - p.rank));
        }
    }
    if (p.me() == 0) wait_for_stores<0>();
    if (a.final_state) store_state(S, a.final_state + state_at(a, w), slice, p.warp(), p.lane());
}

// the i-th pair that a prepare warpgroup makes
ON_DEVICE int own_pair(const Place& p, int i) { return (i * PREPARE_GROUPS + p.group) * CTAS + p.rank; }

// until the state has left the pair that was in the stage of this one
ON_DEVICE void wait_for_stage(const Place& p, int pair) {
    const int before = pair - STAGES;
    if (before >= 0) wait(p.base + Shared::LEFT + before % SLOTS * 8, before / SLOTS & 1);
}

ON_DEVICE void load_tokens(const Args& a, const Work& w, const Place& p, unsigned to, int pair) {
    const unsigned full = p.base + Shared::TOKENS + 8 * p.group;
    if (pair >= w.pairs) return;
    arrive_and_expect(full, Input::BYTES);
    load_box(to + Input::Q, &a.q, w.first(pair), 0, w.key_head, w.batch, full);
    load_box(to + Input::K, &a.k, w.first(pair), 0, w.key_head, w.batch, full);
    load_box(to + Input::G, &a.g, w.first(pair), 0, w.head, w.batch, full);
}

// raw beta of token `lane` of a pair
ON_DEVICE unsigned load_beta(const Args& a, const Work& w, int pair, int lane) {
    if (lane >= w.rows(pair)) return 0;
    const long long token = w.first(pair) + lane;
    const BETA_IN* const first = a.beta + fresh(w.batch) * a.beta_batch + fresh(w.head) * a.beta_head;
    return fetch_bits<sizeof(BETA_IN)>(first + token * a.beta_token);
}

// too strong gates, rare: the warpgroup once more over both blocks, in turns, as they share the sums
ON_DEVICE void redo_scores(unsigned in, unsigned group, const Own& own, const Gate& gate, const Place& p) {
    for (int b = 0; b < 2; ++b) {
        if (own.some()) sum_gates(in, group, own, b, gate);
        barrier(1 + p.group, 128);    // sums are complete
        pair_scores(in, group, b, p.warp(), p.lane());
        barrier(1 + p.group, 128);    // and read
    }
}
ON_DEVICE void redo_units(unsigned in, unsigned units, unsigned group, unsigned exit, const Own& own, const Gate& gate,
                          const Place& p) {
    for (int b = 0; b < 2; ++b) {
        if (own.some()) sum_gates(in, group, own, b, gate);
        barrier(1 + p.group, 128);    // sums are complete
        if (own.some()) edge_units(in, units, group, exit, own, b);
        barrier(1 + p.group, 128);    // and read; the units are complete
    }
    if (p.warp() == 0) decays_between(group, p.lane());
    barrier(1 + p.group, 128);        // decays are complete
}

ON_DEVICE void prepare_role(const Args& a, const Work& w, const Place& p) {
    const int number = 1 + p.group;
    const unsigned group = p.base + Shared::GROUPS + p.group * Group::BYTES;
    const unsigned in = p.base + Shared::INPUTS + p.group * Input::BYTES;
    const Gate gate(a.A_log, a.dt_bias, a.lower_bound, w.head, Own(p.warp(), p.lane()));
    if (p.me() == 0) load_tokens(a, w, p, in, own_pair(p, 0));
    unsigned beta_bits = load_beta(a, w, own_pair(p, 0), p.lane());
    for (int i = 0; own_pair(p, i) < w.pairs; ++i) {
        const int c = own_pair(p, i), s = c % STAGES, slot = c % SLOTS, slot_before = (c + SLOTS - 1) % SLOTS;
        const unsigned stage = p.base + s * Stage::BYTES, full = p.base + Shared::FULL + 8 * s;
        const unsigned units = APART ? p.base + Shared::UNITS + p.group * Units::BYTES : stage;
        const unsigned exit = p.base + Shared::EXITS + slot * VECTOR, exit_is_there = p.base + Shared::EXIT_IS_THERE;
        const unsigned next_beta = load_beta(a, w, own_pair(p, i + 1), p.lane());
        // the partner sends the decay out of the pair before this one
        if (CTAS == 2 && c > 0 && p.me() == 0) arrive_and_expect(exit_is_there + 8 * slot_before, VECTOR);
        if (!APART) wait_for_stage(p, c);
        if (CTAS == 1 && p.me() == 0) announce(a, w, p, c);
        wait(p.base + Shared::TOKENS + 8 * p.group, i & 1);
        bool too_strong = false;
        const Own own(p.warp(), p.lane());
        #pragma unroll
        for (int b = 0; b < 2; ++b) {
            if (!own.some()) continue;
            if (w.rows(c) - C * b < C) clear_missing(in, own, b, w.rows(c) - C * b);
            too_strong |= own.half ? middle_units<1>(in, units, b ? exit : group + Group::EXIT, own, b, gate)
                                   : middle_units<0>(in, units, group + Group::ENTRY + b * VECTOR, own, b, gate);
            if (UNBOUNDED && own.half) write(group + Group::ACROSS + b * VECTOR + 4 * own.channel, 1.f, 1.f);
        }
        const float raw = sizeof(BETA_IN) == 4 ? __uint_as_float(beta_bits) : low(beta_bits);
        const float beta = p.lane() >= w.rows(c) ? 0 : BETA_SIGMOID ? reciprocal(1 + exp2_unit(-LOG2_E * raw)) : raw;
        beta_bits = next_beta;
        // read keys, queries, write keys and decays are complete
        bool edges = false;
        if (UNBOUNDED) edges = barrier_any(number, 128, too_strong); else barrier(number, 128);
        if (edges) redo_scores(in, group, own, gate, p);
        // the roles rotate, so that no scheduler always has the solve
        const int role = (p.warp() + i) % 4;
        scores(in, units, group, role, beta, a.scale, p.lane(), edges);
        if (role == 3) decays_between(group, p.lane());
        barrier(number, 128);            // scores, norms and decays are complete
        if (edges) redo_units(in, units, group, exit, own, gate, p);
        const int t = p.me();
        // nobody reads raw tokens any more
        if (t == 0) load_tokens(a, w, p, in, own_pair(p, i + 1));
        if (CTAS == 1 && t == 0) arrive(exit_is_there + 8 * slot);
        if (CTAS == 2 && c + 1 < w.pairs && t < KEY / 2) {
            const Two x = read_two(exit + 8 * t);
            write_there(in_block(exit + 8 * t, 1 - p.rank), x.x, x.y, in_block(exit_is_there + 8 * slot, 1 - p.rank));
        }
        if (c > 0) wait(exit_is_there + 8 * slot_before, (c - 1) / SLOTS & 1);
        if (t < KEY) column_factors(group, c > 0 ? read_float(p.base + Shared::EXITS + slot_before * VECTOR + 4 * t) : 1, t);
        if (role % 2 == 0) row_solve(group, role / 2, p.lane());
        else cross_scores(units, group, role == 3, p.lane());
        barrier(number, 128);            // solved rows, factors of columns and scores between the blocks are complete
        if (APART) wait_for_stage(p, c);
        const int warp = p.warp(), lane = p.lane();
        move_to_stage(group, stage, exit, p.me());
        if (32 * warp < KEY) {
            fold(units, group, stage, 0, warp, lane);
            move_write_keys(units, group, stage, warp, lane);
            fold(units, group, stage, 1, warp, lane);
        }
        fold_cross(group, stage, warp, lane);
        fence_async();
        if (CTAS == 1) {
            __syncwarp();
            if (lane == 0) arrive(full);
        }
        barrier(number, 128);            // nobody reads what the group keeps any more
        if (CTAS == 2 && warp == 0 && lane == 0) {
            arrive(full);
            copy_there(in_block(stage, 1 - p.rank), stage, Stage::SENT, in_block(full, 1 - p.rank));
        }
    }
}

#if CTAS == 2
#define CLUSTER __cluster_dims__(2, 1, 1)
#else
#define CLUSTER
#endif
// one thread block, or two: one head of one sequence
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1) kda_pairs_hopper(const __grid_constant__ Args a) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const unsigned base = shared_address(memory);
    if (thread_index() == 0) {
        // factors from the four warps or from one thread, and V
        for (int s = 0; s < STAGES; ++s) mbarrier_init(base + Shared::FULL + 8 * s, CTAS == 1 ? 5 : 2);
        for (int i = 0; i < SLOTS; ++i) {
            // the readers of a stage: warps here, or one thread in each block
            mbarrier_init(base + Shared::LEFT + 8 * i, CTAS == 1 ? 4 * STATE_GROUPS : 2);
            mbarrier_init(base + Shared::EXIT_IS_THERE + 8 * i, 1);
        }
        for (int i = 0; i < PREPARE_GROUPS; ++i) mbarrier_init(base + Shared::TOKENS + 8 * i, 1);
        mbarriers_are_ready();
    }
    // the zeros between the cores of a stage, which nobody writes again
    for (int i = thread_index(); i < STAGES * Stage::CORES / 4; i += THREADS)
        write(base + i / (Stage::CORES / 4) * Stage::BYTES + Stage::TM + Stage::CORES + i % (Stage::CORES / 4) * 4, 0u);
    fence_async();
    const Work w = find_work(a, base + Shared::PLACE);
    __syncthreads();            // mbarriers are there for every thread
    if (CTAS == 2) cluster_barrier();    // and for the partner
    // the same in all lanes, which the compiler cannot see
    const int group = from_lane(thread_index() / 128, 0);
    const int rank = CTAS == 2 ? cluster_rank() : 0;
    if (group < STATE_GROUPS) {
        more_registers<STATE_REGISTERS>();
        state_role(a, w, Place{base, rank, group, thread_index() % 128});
    } else {
        fewer_registers<PREPARE_REGISTERS>();
        prepare_role(a, w, Place{base, rank, group - STATE_GROUPS, thread_index() % 128});
    }
    if (CTAS == 2) cluster_barrier();    // nobody leaves while the partner may still write here
}
