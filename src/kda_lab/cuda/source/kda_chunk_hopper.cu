// Kimi Delta Attention, forward, for Hopper: one kernel, no workspace in memory, the state in registers from the first token
// of a sequence to its last. Exact: nothing of the history is dropped, whatever the gates. The algebra is chunk_fused.
//
// 64 rows of V are served by one thread block, 128 by a cluster of two that share the work. In each
//   four state warps   hold 64 rows of S; block after block (16 tokens) they form [U; O] and add U^T write to S
//   prepare warps      in teams of two, with half of the channels each, turn raw q, k, g of a block into factors, in place
//   two loaders        start the copies that bring q, k, g, v; two storers those that take o
// A slot of shared memory carries a block on this way; mbarriers say how far it is. In a cluster each thread block prepares
// every other block of tokens and sends the factors to its partner.
//
// Constants that the compiler is given: KEY (64 or 128); CTAS (1 or 2: VALUE / 64); GATE (hopper_layout.cuh), GATE_IN, BETA_IN
// (float or __nv_bfloat16); UNBOUNDED (1: exponents may leave RANGE), L2NORM, BETA_SIGMOID, CHECKPOINTS (0 or 1); SLOTS,
// PREPARE_WARPS, TEAM (of them with a block), ABREAST (slices that one has in hand); EVERY_LANE; *_BYTES. q, k, v, o are bf16. Left
// to the caller: g <= 0 and no nan in tokens that exist.
#include <hopper_slots.cuh>
#include <hopper_work.cuh>
#include <hopper_edges.cuh>
#include <hopper_state.cuh>

constexpr int VALUE = 64 * CTAS;

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
    if (speaks(lane)) arrive(c.out());
}

// 64 rows of this thread block in an array [.., VALUE, KEY]
template <class X> ON_DEVICE X* rows_of(X* array, const Place& p, long long item) { return array + (item * CTAS + p.rank) * 64 * KEY; }

ON_DEVICE Four* passed_exit(const Args& a, const Place& p, int cluster) {
    return (Four*)(a.passed_exit + (cluster * CTAS + p.rank) * KEY);
}

// true: its rows are on their way from memory
ON_DEVICE bool begin_state(const Args& a, const Part& part, const Place& p, State& S) {
    if (CHECKPOINTS && part.resumes) return false;
    const bool given = part.sequence < a.starts;
    const float* from = given ? rows_of(a.initial_state, p, part.sequence * a.heads + part.head) : nullptr;
    if (!part.first) {      // the one before has begun this head
        wait_for(a.passed + (p.cluster - 1) * CTAS + p.rank);
        from = rows_of(a.passed_state, p, p.cluster - 1);
    }
    const int lane = lane_number();    // asked for here, or addresses would be kept for all parts
    if (from) load_rows(S, from, p.warp, lane);
    else fill_state(S, part.transition, 64 * p.rank, p.warp, lane);
    return from;
}
// exit: this lane's part of the last block's EXIT
ON_DEVICE void end_state(const Args& a, const Part& part, const Place& p, const State& S, Four exit) {
    const bool kept = CHECKPOINTS && part.checkpoint >= 0;
    const int lane = lane_number();
    if (kept) store_state(S, rows_of(a.checkpoint_states, p, part.checkpoint * a.heads + part.head), p.warp, lane);
    if (part.last && a.final_state) store_state(S, rows_of(a.final_state, p, part.sequence * a.heads + part.head), p.warp, lane);
    if (!part.passes) return;
    store_state(S, rows_of(a.passed_state, p, p.cluster), p.warp, lane);
    if (p.warp == 0 && p.lane < KEY / 4)    // at a checkpoint the state is in the units of the end
        passed_exit(a, p, p.cluster)[p.lane] = kept ? Four{0, 0, 0, 0} : exit;
    publish();
    barrier(1, 128);
    if (p.warp == 0 && p.lane == 0) raise(a.passed + p.cluster * CTAS + p.rank);
}

ON_DEVICE void state_role(const Args& a, const Place& p) {
    const int lane = p.lane;
    State S;                // in units of the middle of the last block that has been read
    float x[16];
    unsigned o[4];
    Turn turn(p);
    Cursor here = turn.next(), next = turn.next();
    for (bool more = has_work(p.base + Shared::PLACE); more;) {
        wait(here.full(), here.parity);
        const Part part = read_part(here.part);
        more = part.more;
        const bool rows = begin_state(a, part, p, S);
        Vector f;
        Values v = load_values(here.slot, p.warp, lane);
        #pragma unroll
        for (int i = 0; i < 16; ++i) x[i] = 0;
        multiply_values(x, v, here.units);
        wgmma_wait<0>(), pin(x);
        if (rows) in_place(S, lane_number());
        multiply_state(S, x, here.units);
        bool there = false;     // the next block's factors, and its V in registers
        read_slices(f, 0, SLICES, here.slot + Slot::SCALE, lane);
        // turned by half a step: X of a block is on its way when the loop enters, so that the scaling of S ends each round and
        // the compiler can follow which registers the tensor cores own
        scale(S, f);
        for (int left = part.blocks - 1; left > 0; --left) {
            if (!there) {
                wait(next.full(), next.parity);
                v = load_values(next.slot, p.warp, lane);
            }
            // half of the decays before and half behind the update: both times the tensor cores are at work
            read_slices(f, 0, SLICES / 2, next.slot + Slot::SCALE, lane);
            wgmma_wait<0>(), pin(x);
            update(S, x, o, here.units);
            write_out(o, here.slot, p.warp, lane);
            const Cursor then = turn.next();
            multiply_values(x, v, next.units);
            read_slices(f, SLICES / 2, SLICES, next.slot + Slot::SCALE, lane);
            there = has_ended(then.full(), then.parity);
            wgmma_wait<1>(), pin(S);
            multiply_state(S, x, next.units);
            // behind the products there is time: an answer and a load take long
            there = same_in_all_lanes(there);
            if (there) v = load_values(then.slot, p.warp, lane);
            scale(S, f);
            hand_over(here, lane);
            here = next, next = then;
        }
        wgmma_wait<0>(), pin(x);
        update(S, x, o, here.units);
        write_out(o, here.slot, p.warp, lane);
        read_slices(f, 0, SLICES, here.slot + Slot::EXIT, lane);
        wgmma_wait<0>(), pin(S);
        if (part.last || (CHECKPOINTS && part.checkpoint >= 0)) {
            #pragma unroll
            for (int u = 0; u < KEY / 16; ++u) f.x[u] = exp2_unit(f.x[u]);
            scale(S, f);
        }
        const Four exit = read_four(here.slot + Slot::EXIT + lane % (KEY / 4) * 16);
        copy_out(a, part, p, here.slot);
        hand_over(here, lane);    // before the state is stored: that takes long
        end_state(a, part, p, S, exit);
        here = next, next = turn.next();
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
// V of a block, and what else its slot will receive from a partner. What does not exist of V is 0, since it may be nan in memory: rows
// behind a tensor are; of a block that is not whole the others are cleared here. partial counts such blocks
ON_DEVICE void load_values(const Args& a, const Part& part, const Place& p, int c, int n, int& partial) {
    const bool sent = !p.own(), whole = part.transition || part.rows(c) >= C;
    const unsigned values = p.slot(n) + Slot::V, full = p.full(n), there = whole ? full : p.base + Shared::PARTIAL + (sent ? 8 : 0);
    arrive_and_expect(there, TILE + (whole && sent ? Slot::SENT : 0));
    // a transition has no values
    load_box(values, &a.v, part.transition ? int(a.tokens) : part.row(c), p.rank, part.head, part.batch, there);
    if (!whole) {
        wait(there, partial++ & 1);
        #pragma unroll 1
        for (unsigned at = part.rows(c) * 128; at < TILE; at += 16) write(values + at, Four{0, 0, 0, 0});
        fence_async();
        arrive_and_expect(full, sent ? Slot::SENT : 0);
    }
    if (sent) arrive(full);
}

// the state that a part will begin with: who holds the state has no registers to ask for it early
ON_DEVICE void prefetch_state(const Args& a, const Part& part, const Place& p) {
    if (part.first && part.sequence < a.starts) prefetch(rows_of(a.initial_state, p, part.sequence * a.heads + part.head), 64 * KEY * 4);
}

// one lane: blocks on their way as their slots become free; n: the first one. A loader for those that are prepared here, one for
// those that the partner sends
ON_DEVICE void load_role(const Args& a, const Place& p, int n) {
    int partial = 0;
    for (Walk walk(a, p.base + Shared::PLACE); walk.find(n); n += CTAS) {
        const int c = n - walk.start;
        if (p.own() && c < CTAS) prefetch_state(a, walk.part, p);
        if (p.again(n)) wait(p.empty(n), p.phase(n) ^ 1);
        if (p.own()) load_tokens(a, walk.part, p, c, p.slot(n), p.tokens(n));
        if (c == 0) write_part(p.part(n), walk.part);
        load_values(a, walk.part, p, c, n, partial);
    }
    // the last EXIT lands before the end, even if nobody needs it
    if (!p.own() && n >= CTAS) wait(p.exits(n - CTAS), p.exit_phase(n - CTAS));
}
// one lane: O on its way, and then the slot is free; n: the first block. A storer for every other block
ON_DEVICE void store_role(const Args& a, const Place& p, int n) {
    for (Walk walk(a, p.base + Shared::PLACE); walk.find(n); n += CTAS) {
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

// EXIT of a block is there, for who prepares the next one; exit: this lane's part
ON_DEVICE void send_exit(const Place& p, int n, unsigned slot, Four exit, int lane) {
    __syncwarp();    // LOGS have been read
    if (lane < KEY / 4) write(slot + Slot::EXIT + 16 * lane, exit);
    if (CTAS == 1) {
        __syncwarp();
        if (speaks(lane)) arrive(p.exits(n));
        return;
    }
    const unsigned to = p.partner().exit(n) + 16 * lane, exits = p.partner().exits(n);
    if (lane == 0) arrive_and_expect_there(exits, 4 * KEY);
    if (lane < KEY / 4) write_there(to, exit.x, exit.y, exits), write_there(to + 8, exit.z, exit.w, exits);
}
// the factors of a block on their way to the partner, whose slot has to be free
ON_DEVICE void send(const Place& p, int n, unsigned slot) {
    const int before = n - CTAS * SENT_SLOTS;    // the block that it held before
    if (before >= 0) wait(p.empty(before), p.phase(before));
    copy_there(p.partner().slot(n), slot, Slot::SENT, p.partner().full(n));
}

ON_DEVICE void prepare_role(const Args& a, const Place& p, const Team& team) {
    constexpr int STEP = CTAS * TEAMS;
    const int lane = p.lane;
    const unsigned scratch = p.base + Shared::SCRATCH + team.number * Scratch::BYTES, again = p.base + Shared::AGAIN + 8 * team.number;
    const Sums sums(lane, p.base + Shared::IDENTITY + lane % 8 * ROW + 8 * 4);
    int n = CTAS * team.number + p.rank, repeats = 0;
    Walk walk(a, p.base + Shared::PLACE);
    bool edges = false;     // gates of the last block were too strong for one reference
    int head = -1;          // whose gate and shifts these are
    Gate gate;
    Shifts shifts;
    while (walk.find(n)) {
        const Part part = walk.part;
        if (CHECKPOINTS || part.head != head) {    // with checkpoints for each part: there is no register left for the head
            head = part.head;
            gate = Gate(a.A_log, a.lower_bound, head), shifts = Shifts(a.dt_bias, gate, head, scratch, team, lane);
        }
        for (; n < walk.start + part.blocks; n += STEP) {
            const int c = n - walk.start;
            const unsigned slot = p.slot(n);
            const unsigned beta_bits = team.first() ? load_beta(a, part, c, lane) : 0;
            Scores x;
            Kept kept;
            bool edges_here = edges;
            wait(p.tokens(n), p.phase(n));
            if (part.rows(c) < C) clear_missing(slot, part.rows(c), team, lane);
            // lane_number(): asked for again where what follows from it would be kept for all blocks
            if (!UNBOUNDED || !edges) edges = middle_units(slot, shifts, sums, gate, x, kept, team, TEAM == 1 ? lane_number() : lane);
            if (UNBOUNDED && edges) {
                if (!edges_here) {      // nothing is left of the raw tokens
                    fence_async();
                    team.meet();
                    if (team.first() && lane == 0) load_tokens(a, part, p, c, slot, again);
                    wait(again, repeats++ & 1);
                    if (part.rows(c) < C) clear_missing(slot, part.rows(c), team, lane);
                    x = Scores();
                    edges_here = true;
                }
                edges = edge_units(slot, shifts, sums, gate, x, team, lane);
            }
            if (!team.first()) leave_scores(x, scratch, lane);
            team.meet();    // scores, entry and exit of all channels
            Logs logs;
            if (team.last()) logs = read_logs(slot, lane), send_exit(p, n, slot, logs.exit, lane);
            if (team.first()) {
                const int lane = lane_number();
                if (!team.last()) add_scores(x, scratch, lane);
                const float raw = sizeof(BETA_IN) == 4 ? __uint_as_float(beta_bits) : low(beta_bits);
                const float beta = lane % 16 >= part.rows(c) ? 0 : BETA_SIGMOID ? reciprocal(1 + exp2_unit(-LOG2_E * raw)) : raw;
                store_scores(x, scratch, beta, a.scale, lane);
                const unsigned start = lane < 16 ? p.base + Shared::IDENTITY + lane * ROW : scratch + Scratch::M + (lane - 16) * ROW;
                row_solve(slot, scratch, start, lane);
            }
            if (team.last()) {
                Four before = {0, 0, 0, 0};    // this lane's part of the EXIT of the block before
                if (n) wait(p.exits(n - 1), p.exit_phase(n - 1));
                const bool passed = !c && !part.first && !(CHECKPOINTS && part.resumes);    // comes from the cluster before
                if (passed) wait_for(a.passed + (p.cluster - 1) * CTAS + p.rank);
                if (lane < KEY / 4) {
                    if (c) before = read_four(p.exit(n - 1) + 16 * lane);
                    else if (passed) before = passed_exit(a, p, p.cluster - 1)[lane];
                }
                decays(slot, scratch, logs.entry, before, edges_here, lane);
                if (n && speaks(lane)) {    // the EXIT before may be written over
                    if (CTAS == 2) arrive_there(p.partner().own_ring().empty(n - 1));
                    else arrive(p.empty(n - 1));
                }
            }
            team.meet();    // solved rows and decays
            fold(slot, scratch, kept, team, lane);
            fence_async();
            team.done();
            if (!team.last()) continue;
            if (speaks(lane)) arrive(p.full(n));
            if (CTAS == 2 && elected()) send(p, n, slot);
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
            // needs its EXIT for the next block
            const bool own = s < OWN_SLOTS;
            mbarrier_init(base + Shared::FULL + 8 * s, (own ? VOICES : 1) + 1);
            mbarrier_init(base + Shared::OUT + 8 * s, STATE_WARPS * VOICES);
            mbarrier_init(base + Shared::EMPTY + 8 * s, own ? CTAS + VOICES : 1);
            mbarrier_init(base + Shared::TOKENS + 8 * s, 1);
            if (own) mbarrier_init(base + Shared::EXITS + 8 * s, CTAS == 2 ? 1 : VOICES);
        }
        for (int i = 0; i < TEAMS + 2; ++i) mbarrier_init(base + Shared::AGAIN + 8 * i, 1);    // and PARTIAL
        mbarriers_are_ready();
    }
    if (thread_index() < 256) {
        const int i = thread_index() / 16, j = thread_index() % 16;
        write(base + Shared::IDENTITY + i * ROW + 4 * j, i == j ? 1.f : 0.f);
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
        if (warp < STATE_WARPS + PREPARE_WARPS) prepare_role(a, p, Team(warp - STATE_WARPS));
    } else {
        fewer_registers<MOVE_REGISTERS>();
        if (elected()) {
            const int n = warp < STORER ? (p.rank + warp - LOADERS) % CTAS : warp - STORER;
            if (warp < LOADERS + CTAS) load_role(a, p.of(n), n);
            if (warp >= STORER && warp < STORER + CTAS) store_role(a, p.of(n), n);
        }
    }
    __syncwarp();
    if (CTAS == 2) cluster_barrier();    // nobody leaves while the partner may still write here
}
