// Kimi Delta Attention, forward, for Hopper: one kernel, no workspace in memory, the state in registers from the first token
// of a sequence to its last. Exact: nothing of the history is dropped, whatever the gates. The algebra is chunk_fused.
//
// 64 rows of V are served by one thread block, 128 by a cluster of two that share the work. In each
//   four state warps   hold 64 rows of S; block after block (16 tokens) they form [U; O] and add U^T write to S
//   prepare warps      each turns raw q, k, g of a block of its own into factors, in place, without waiting for another warp
//   two loaders        start the copies that bring q, k, g, v; a storer those that take o
// A slot of shared memory carries a block on this way; mbarriers say how far it is. In a cluster each thread block prepares
// every other block of tokens and sends the factors to its partner.
//
// Constants that the compiler is given: KEY (64 or 128); CTAS (1 or 2: VALUE / 64); GATE (hopper_layout.cuh), GATE_IN, BETA_IN
// (float or __nv_bfloat16); UNBOUNDED (1: exponents may leave RANGE), L2NORM, BETA_SIGMOID, CHECKPOINTS (0 or 1); SLOTS, PREPARE_WARPS;
// *_BYTES. q, k, v, o are bf16. Left to the caller: g <= 0 and no nan in tokens that exist.
#include <hopper_work.cuh>
#include <hopper_edges.cuh>
#include <hopper_state.cuh>

constexpr int VALUE = 64 * CTAS;

// rank: of the thread block in its cluster. n counts the blocks of the range in the order of work. A block that is prepared here has
// a slot for long, one that the partner sends for a short time: two rings
struct Place {
    unsigned base;
    int cluster, rank, warp, lane;
    __device__ bool own(int n) const { return CTAS == 1 || (n & 1) == rank; }    // prepared here
    __device__ int number(int n) const {
        const unsigned i = unsigned(n) / CTAS;
        return own(n) ? i % OWN_SLOTS : OWN_SLOTS + i % SENT_SLOTS;
    }
    __device__ unsigned round(int n) const { return unsigned(n) / CTAS / (own(n) ? OWN_SLOTS : SENT_SLOTS); }
    __device__ unsigned phase(int n) const { return round(n) & 1; }
    __device__ unsigned slot(int n) const { return base + number(n) * Slot::BYTES; }
    // the mbarriers of a block's slot; each phase of theirs is a block
    __device__ unsigned full(int n) const { return base + Shared::FULL + number(n) * 8; }
    __device__ unsigned empty(int n) const { return base + Shared::EMPTY + number(n) * 8; }
    __device__ unsigned exits(int n) const { return base + Shared::EXITS + number(n) * 8; }
    __device__ unsigned tokens(int n) const { return base + Shared::TOKENS + number(n) * 8; }
    __device__ Place partner() const { return Place{in_block(base, 1 - rank), cluster, 1 - rank, warp, lane}; }
    __device__ unsigned out(int n) const { return base + Shared::OUT + number(n) * 8; }
};

// the slot of a block has been read for the last time: its owner has to know, who may send to it again
ON_DEVICE void release(const Place& p, int n) {
    arrive(p.empty(n));
    if (!p.own(n)) arrive_there(p.partner().empty(n));
}

// the slots of one ring in turn: what Place says, without divisions
struct Cursor {
    unsigned slot, bar, parity, first, end;
    __device__ Cursor(const Place& p, int n)
        : slot(p.slot(n)), bar(p.full(n)), parity(p.phase(n)), first(p.base + (p.own(n) ? 0 : OWN_SLOTS) * Slot::BYTES),
          end(p.base + (p.own(n) ? OWN_SLOTS : SLOTS) * Slot::BYTES) {}
    __device__ unsigned full() const { return bar; }
    __device__ unsigned exits() const { return bar + Shared::EXITS - Shared::FULL; }
    __device__ unsigned out() const { return bar + Shared::OUT - Shared::FULL; }
    __device__ Cursor after() const {
        Cursor c = *this;
        c.slot += Slot::BYTES, c.bar += 8;
        if (c.slot == end) c.slot = first, c.bar -= (end - first) / Slot::BYTES * 8, c.parity ^= 1;
        return c;
    }
};

// ---- the state ----
// what exists of O of a last block: the copy engine would write over the next sequence
ON_DEVICE void copy_out(const Args& a, const Part& part, const Place& p, unsigned slot) {
    const int c = part.blocks - 1;
    if (!a.out || part.rows(c) >= C) return;
    barrier(1, 128);    // the tile is complete
    const long long row = (long long)part.batch * a.tokens + part.row(c);
    copy_rows(a.out + (row * a.heads + part.head) * VALUE + 64 * p.rank, a.heads * VALUE, slot + Slot::V, part.rows(c), 32 * p.warp + p.lane);
}
// this warp is done with a slot, and its part of O is there
ON_DEVICE void hand_over(const Cursor& c, int lane) {
    __syncwarp();
    if (lane == 0) arrive(c.out());
}

// 64 rows of this thread block in an array [.., VALUE, KEY]
template <class X> ON_DEVICE X* rows_of(X* array, const Place& p, long long item) { return array + (item * CTAS + p.rank) * 64 * KEY; }

ON_DEVICE Four* passed_exit(const Args& a, const Place& p, int cluster) {
    return (Four*)(a.passed_exit + (cluster * CTAS + p.rank) * KEY);
}

ON_DEVICE void begin_state(const Args& a, const Part& part, const Place& p, State& S) {
    if (CHECKPOINTS && part.resumes) return;
    const bool given = part.sequence < a.starts;
    const float* from = given ? rows_of(a.initial_state, p, part.sequence * a.heads + part.head) : nullptr;
    if (!part.first) {      // the one before has begun this head
        wait_for(a.passed + (p.cluster - 1) * CTAS + p.rank);
        from = rows_of(a.passed_state, p, p.cluster - 1);
    }
    load_state(S, from, part.transition, 64 * p.rank, p.warp, p.lane);
}
ON_DEVICE void end_state(const Args& a, const Part& part, const Place& p, const State& S, unsigned slot) {
    const bool kept = CHECKPOINTS && part.checkpoint >= 0;
    if (kept) store_state(S, rows_of(a.checkpoint_states, p, part.checkpoint * a.heads + part.head), p.warp, p.lane);
    if (part.last && a.final_state) store_state(S, rows_of(a.final_state, p, part.sequence * a.heads + part.head), p.warp, p.lane);
    if (!part.passes) return;
    store_state(S, rows_of(a.passed_state, p, p.cluster), p.warp, p.lane);
    if (p.warp == 0 && p.lane < KEY / 4)    // at a checkpoint the state is in the units of the end
        passed_exit(a, p, p.cluster)[p.lane] = kept ? Four{0, 0, 0, 0} : read_four(slot + Slot::EXIT + 16 * p.lane);
    publish();
    barrier(1, 128);
    if (p.warp == 0 && p.lane == 0) raise(a.passed + p.cluster * CTAS + p.rank);
}

ON_DEVICE void state_role(const Args& a, const Place& p) {
    const int lane = p.lane;
    State S;                // in units of the middle of the last block that has been read
    float x[16];
    unsigned o[4];
    Cursor here(p, 0), next(p, 1);
    for (Walk walk(a, p.base + Shared::PLACE); walk.next();) {
        const Part& part = walk.part;
        // tokens of the last block that exist; a transition has no values
        const int rows = part.transition ? 0 : part.rows(part.blocks - 1), whole = part.transition ? 0 : C;
        begin_state(a, part, p, S);
        wait(here.full(), here.parity);
        Vector f;
        read_slices(f, 0, SLICES, here.slot + Slot::SCALE, lane);
        Values v = load_values(here.slot, p.warp, lane, part.blocks == 1 ? rows : whole);
        #pragma unroll
        for (int i = 0; i < 16; ++i) x[i] = 0;
        multiply_values(x, v, here.slot);
        wgmma_wait<0>(), pin(x);
        multiply_state(S, x, here.slot);
        bool there = false;     // the next block's factors, and its V in registers
        // turned by half a step: X of a block is on its way when the loop enters, so that the scaling of S ends each round and
        // the compiler can follow which registers the tensor cores own
        scale(S, f);
        for (int left = part.blocks - 1; left > 0; --left) {
            if (!there) {
                wait(next.full(), next.parity);
                v = load_values(next.slot, p.warp, lane, left == 1 ? rows : whole);
            }
            // half of the decays before and half behind the update: both times the tensor cores are at work
            read_slices(f, 0, SLICES / 2, next.slot + Slot::SCALE, lane);
            wgmma_wait<0>(), pin(x);
            update(S, x, o, here.slot);
            write_out(o, here.slot, p.warp, lane);
            const Cursor then = (CTAS == 2 ? here : next).after();
            multiply_values(x, v, next.slot);
            read_slices(f, SLICES / 2, SLICES, next.slot + Slot::SCALE, lane);
            there = has_ended(then.full(), then.parity);
            wgmma_wait<1>(), pin(S);
            multiply_state(S, x, next.slot);
            // behind the products there is time: an answer and a load take long
            there = same_in_all_lanes(there);
            if (there) v = load_values(then.slot, p.warp, lane, left == 2 ? rows : whole);
            scale(S, f);
            hand_over(here, lane);
            here = next, next = then;
        }
        wgmma_wait<0>(), pin(x);
        update(S, x, o, here.slot);
        write_out(o, here.slot, p.warp, lane);
        wait(here.exits(), here.parity);
        read_slices(f, 0, SLICES, here.slot + Slot::EXIT, lane);
        wgmma_wait<0>(), pin(S);
        if (part.last || (CHECKPOINTS && part.checkpoint >= 0)) {
            #pragma unroll
            for (int u = 0; u < KEY / 16; ++u) f.x[u] = exp2_unit(f.x[u]);
            scale(S, f);
        }
        end_state(a, part, p, S, here.slot);
        copy_out(a, part, p, here.slot);
        hand_over(here, lane);
        const Cursor then = (CTAS == 2 ? here : next).after();
        here = next, next = then;
    }
    // rows of o after the last sequence belong to nobody, and are zero
    if (a.out && a.cu_seqlens) {
        const long long from = a.cu_seqlens[a.increments] * a.heads * 8, to = a.tokens * a.heads * 8;
        for (long long i = from + p.cluster * 128 + 32 * p.warp + lane; i < to; i += a.clusters * 128)
            *(Four*)(a.out + i / 8 * VALUE + 64 * p.rank + i % 8 * 8) = Four{0, 0, 0, 0};
    }
}

// ---- what goes in and out ----
ON_DEVICE void load_tokens(const Args& a, const Part& part, const Place& p, int c, unsigned slot, unsigned there) {
    arrive_and_expect(there, 2 * KEYS + GATES);
    load_box(slot + Slot::G, &a.g, part.row(c), 0, part.head, part.batch, there);
    for (int h = 0; h < KEY_SLICES; ++h) {
        load_box(slot + Slot::WQ + 2 * h * TILE, &a.k, part.row(c), h, part.key_head, part.batch, there);
        load_box(slot + Slot::WQ + 2 * h * TILE + TILE, &a.q, part.row(c), h, part.key_head, part.batch, there);
    }
}
// V of a block, and what else its slot will receive from a partner
ON_DEVICE void load_values(const Args& a, const Part& part, const Place& p, int c, int n) {
    const bool sent = !p.own(n);
    arrive_and_expect(p.full(n), TILE + (sent ? Slot::SENT : 0));
    load_box(p.slot(n) + Slot::V, &a.v, part.row(c), p.rank, part.head, part.batch, p.full(n));
    if (!sent) return;
    arrive(p.full(n));
    arrive_and_expect(p.exits(n), 4 * KEY);
}

// the state that a part will begin with: who holds the state has no registers to ask for it early
ON_DEVICE void prefetch_state(const Args& a, const Part& part, const Place& p) {
    if (part.first && part.sequence < a.starts) prefetch(rows_of(a.initial_state, p, part.sequence * a.heads + part.head), 64 * KEY * 4);
}

// one lane: blocks on their way as their slots become free; n: the first one. A loader for those that are prepared here, one for
// those that the partner sends
ON_DEVICE void load_role(const Args& a, const Place& p, int n) {
    for (Walk walk(a, p.base + Shared::PLACE); walk.find(n); n += CTAS) {
        const int c = n - walk.start;
        if (p.round(n)) wait(p.empty(n), p.phase(n) ^ 1);
        if (p.own(n)) {
            load_tokens(a, walk.part, p, c, p.slot(n), p.tokens(n));
            if (c < CTAS) prefetch_state(a, walk.part, p);
        }
        load_values(a, walk.part, p, c, n);
    }
}
// one lane: O on its way, and then the slot is free
ON_DEVICE void store_role(const Args& a, const Place& p) {
    int n = 0;
    for (Walk walk(a, p.base + Shared::PLACE); walk.find(n); ++n) {
        const int c = n - walk.start;
        wait(p.out(n), p.phase(n));
        if (a.out && walk.part.rows(c) >= C) {
            fence_async();
            store_box(&a.o, walk.part.row(c), p.rank, walk.part.head, walk.part.batch, p.slot(n) + Slot::V);
            wait_for_stores<0>();
        }
        release(p, n);
    }
}

// ---- preparation ----
// raw beta of token lane % 16 of a block
ON_DEVICE unsigned load_beta(const Args& a, const Part& part, int c, int lane) {
    if (lane % 16 >= part.rows(c)) return 0;
    const long long token = part.row(c) + lane % 16;
    return fetch_bits<sizeof(BETA_IN)>(a.beta + part.batch * a.beta_batch + token * a.beta_token + part.head * a.beta_head);
}

// number: of the warp among those that prepare
ON_DEVICE void prepare_role(const Args& a, const Place& p, int number) {
    constexpr int STEP = CTAS * PREPARE_WARPS;
    const int lane = p.lane;
    const unsigned scratch = p.base + Shared::SCRATCH + number * Scratch::BYTES, again = p.base + Shared::AGAIN + 8 * number;
    const Sums sums(lane);
    int n = CTAS * number + p.rank, repeats = 0;
    Walk walk(a, p.base + Shared::PLACE);
    bool edges = false;     // gates of the last block were too strong for one reference
    int head = -1;          // whose gate and shifts these are
    Gate gate;
    Shifts shifts;
    while (walk.find(n)) {
        const Part part = walk.part;
        if (part.head != head) {
            head = part.head;
            gate = Gate(a.A_log, a.lower_bound, head), shifts = Shifts(a.dt_bias, gate, head, scratch, lane);
        }
        for (; n < walk.start + part.blocks; n += STEP) {
            const int c = n - walk.start;
            const unsigned slot = p.slot(n);
            const unsigned beta_bits = load_beta(a, part, c, lane);
            Scores x;
            bool edges_here = edges;
            wait(p.tokens(n), p.phase(n));
            if (part.rows(c) < C) clear_missing(slot, part.rows(c), lane);
            if (!UNBOUNDED || !edges) edges = middle_units(slot, shifts, sums, gate, x, lane);
            if (UNBOUNDED && edges) {
                if (!edges_here) {      // nothing is left of the raw tokens
                    fence_async();
                    __syncwarp();
                    if (lane == 0) load_tokens(a, part, p, c, slot, again);
                    wait(again, repeats++ & 1);
                    if (part.rows(c) < C) clear_missing(slot, part.rows(c), lane);
                    x = Scores();
                    edges_here = true;
                }
                edges = edge_units(slot, shifts, sums, gate, x, lane);
            }
            const float raw = sizeof(BETA_IN) == 4 ? __uint_as_float(beta_bits) : low(beta_bits);
            const float beta = lane % 16 >= part.rows(c) ? 0 : BETA_SIGMOID ? reciprocal(1 + exp2_unit(-LOG2_E * raw)) : raw;
            store_scores(x, slot, scratch, beta, a.scale, lane);
            if (CTAS == 2 && lane < KEY / 4) {
                const Four exit = read_four(slot + Slot::EXIT + 16 * lane);
                const unsigned to = p.partner().slot(n) + Slot::EXIT + 16 * lane, exits = p.partner().exits(n);
                // the block that the partner's slot held before
                const int before = n - CTAS * SENT_SLOTS;
                if (before >= 0) wait(p.empty(before), p.phase(before));
                write_there(to, exit.x, exit.y, exits), write_there(to + 8, exit.z, exit.w, exits);
            }
            if (lane == 0) arrive(p.exits(n));
            row_solve(slot, scratch, lane);
            Four before = {0, 0, 0, 0};    // this lane's part of the EXIT of the block before
            if (c) wait(p.exits(n - 1), p.phase(n - 1));
            const bool passed = !c && !part.first && !(CHECKPOINTS && part.resumes);    // comes from the cluster before
            if (passed) wait_for(a.passed + (p.cluster - 1) * CTAS + p.rank);
            if (lane < KEY / 4) {
                if (c) before = read_four(p.slot(n - 1) + Slot::EXIT + 16 * lane);
                else if (passed) before = passed_exit(a, p, p.cluster - 1)[lane];
            }
            decays(slot, scratch, before, edges_here, lane);
            if (n && lane == 0) release(p, n - 1);
            fold(slot, scratch, lane);
            fence_async();
            __syncwarp();
            if (lane == 0) {
                arrive(p.full(n));
                if (CTAS == 2) copy_there(p.partner().slot(n), slot, Slot::SENT, p.partner().full(n));
            }
        }
    }
}

#if CTAS == 2
#define CLUSTER __cluster_dims__(2, 1, 1)
#else
#define CLUSTER
#endif
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1) kda_chunk_hopper(const __grid_constant__ Args a) {
    extern __shared__ __align__(16) unsigned char memory[];
    const unsigned base = whole_lines(shared_address(memory));
    // the same in all lanes, which the compiler cannot see
    const int warp = from_lane(thread_index() / 32, 0), lane = thread_index() % 32;
    Place p{base, block_number() / CTAS, CTAS == 2 ? cluster_rank() : 0, warp, lane};
    if (thread_index() == 0) {
        for (int s = 0; s < SLOTS; ++s) {
            // who prepares it and who announces V; the warps of the state; the storers, also of a partner who has a copy, and who
            // folds the next block
            mbarrier_init(base + Shared::FULL + 8 * s, 2);
            mbarrier_init(base + Shared::OUT + 8 * s, STATE_WARPS);
            mbarrier_init(base + Shared::EMPTY + 8 * s, (s < OWN_SLOTS ? CTAS : 1) + 1);
            mbarrier_init(base + Shared::EXITS + 8 * s, 1);
            mbarrier_init(base + Shared::TOKENS + 8 * s, 1);
        }
        for (int i = 0; i < PREPARE_WARPS; ++i) mbarrier_init(base + Shared::AGAIN + 8 * i, 1);
        mbarriers_are_ready();
    }
    if (warp == 1) find_range(a, p.cluster, base + Shared::PLACE, lane);
    __syncthreads();            // mbarriers and the range are there for every thread
    if (CTAS == 2) cluster_barrier();    // and for the partner
    p.lane = lane_number();     // asked for again: if it was kept, the assembler would keep it in memory
    if (warp < STATE_WARPS) {
        more_registers<STATE_REGISTERS>();
        state_role(a, p);
    } else if (warp < LOADERS) {
        more_registers<PREPARE_REGISTERS>();
        if (warp < STATE_WARPS + PREPARE_WARPS) prepare_role(a, p, warp - STATE_WARPS);
    } else {
        fewer_registers<MOVE_REGISTERS>();
        if (p.lane == 0 && warp < LOADERS + CTAS) load_role(a, p, (p.rank + warp - LOADERS) % CTAS);
        if (p.lane == 0 && warp == STORER) store_role(a, p);
    }
    __syncwarp();
    if (CTAS == 2) cluster_barrier();    // nobody leaves while the partner may still write here
}
