// Kernels for machine.py about clusters, roles of warps and products
#include <machine.cuh>

// ---- a cluster of two, both directions at once ----
enum Traffic { RING, ALL_AT_ONCE, STORES_ASYNC, STORES, PING_COPY, PING_ARRIVE, PING_STORE };
constexpr int BARRIERS = 32;

ON_DEVICE void store_async(unsigned to, unsigned x, unsigned b) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%1,%1,%1}, [%2];"
        :: "r"(to), "r"(x), "r"(b) : "memory");
}
ON_DEVICE void store_there(unsigned to, unsigned x) {
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1,%1,%1,%1};" :: "r"(to), "r"(x) : "memory");
}

// a: bytes of a copy; b: copies in flight; c: how many copies, stores a thread or rounds
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(256) machine_cluster(const Args args) {
    const unsigned base = shared_address(memory), from = base + DATA, to = from + 114688;
    const int rank = cluster_rank(), bytes = args.a, flight = args.b, count = args.c;
    const unsigned there = in_block(to, rank ^ 1), full = in_block(base, rank ^ 1);
    const unsigned empty = in_block(base + 8 * BARRIERS, rank ^ 1);
    fill(from, 114688, false);
    fence_async();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * BARRIERS; ++i) mbarrier_init(base + 8 * i, 1);
        mbarriers_are_ready();
        // what each barrier waits for, announced before anybody sends
        if (args.what == RING) for (int i = 0; i < flight; ++i) arrive_and_expect(base + 8 * i, bytes);
        if (args.what == ALL_AT_ONCE) arrive_and_expect(base, bytes * count);
        if (args.what == STORES_ASYNC) arrive_and_expect(base, 16 * blockDim.x * count);
        if (args.what == PING_COPY) for (int i = 0; i < BARRIERS; ++i) arrive_and_expect(base + 8 * i, bytes);
        if (args.what == PING_STORE) for (int i = 0; i < BARRIERS; ++i) arrive_and_expect(base + 8 * i, 16);
    }
    __syncthreads();
    cluster_barrier();
    const int start = now();
    bool good = true;
    if (args.what == RING && threadIdx.x == 0) {
        #pragma unroll 1
        for (int i = 0, s = 0, round = 0; good && i < count; ++i) {
            if (round) good = in_time(base + 8 * (BARRIERS + s), (round - 1) % 2);
            if (good) copy_there(there + s * bytes, from + s * bytes, bytes, full + 8 * s);
            if (++s == flight) s = 0, ++round;
        }
    } else if (args.what == RING && threadIdx.x == 32) {
        #pragma unroll 1
        for (int i = 0, s = 0, round = 0; good && i < count; ++i) {
            good = in_time(base + 8 * s, round % 2);
            if (good && i + flight < count) {
                arrive_and_expect(base + 8 * s, bytes);
                arrive_there(empty + 8 * s);
            }
            if (++s == flight) s = 0, ++round;
        }
    } else if (args.what == ALL_AT_ONCE && threadIdx.x == 0) {
        #pragma unroll 1
        for (int i = 0; i < count; ++i) copy_there(there, from, bytes, full);
    } else if (args.what == ALL_AT_ONCE && threadIdx.x == 32) {
        good = in_time(base, 0);
    } else if (args.what == STORES_ASYNC) {
        #pragma unroll 8
        for (int i = 0; i < count; ++i) store_async(there + 16 * threadIdx.x + i % 8 * 4096, args.zero, full);
        good = in_time(base, 0);
    } else if (args.what == STORES) {
        #pragma unroll 8
        for (int i = 0; i < count; ++i) store_there(there + 16 * threadIdx.x + i % 8 * 4096, args.zero);
        cluster_barrier();
    } else if (args.what >= PING_COPY && threadIdx.x == 0) {
        #pragma unroll 1
        for (int i = 0; good && i < count; ++i) {
            if (rank) good = in_time(base + 8 * i, 0);
            if (good && args.what == PING_COPY) copy_there(there, from, bytes, full + 8 * i);
            if (good && args.what == PING_ARRIVE) arrive_there(full + 8 * i);
            if (good && args.what == PING_STORE) store_async(there, args.zero, full + 8 * i);
            if (good && !rank) good = in_time(base + 8 * i, 0);
        }
    }
    const int cycles = good ? now() - start : -1;
    __syncwarp();
    note(args, 0, cycles);
    __syncthreads();
    cluster_barrier();
}

// ---- 12 warps, three on a scheduler: one of them has short work. a: which; b: what the others do ----
extern "C" __global__ void __launch_bounds__(384) machine_roles(const Args args) {
    const unsigned base = shared_address(memory), b = base + 8 * warp();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 13; ++i) mbarrier_init(base + 8 * i, 1);
        mbarriers_are_ready();
    }
    fill(base + DATA, 16384, true);
    __syncthreads();
    const int start = now(), length = 60000;
    if (warp() / 4 != args.a) {
        const int rounds = busy(args, args.b, base + DATA, base + 8 * 12, start, length, 0);
        note(args, 0, rounds);
        note(args, 1, now() - start);
        return;
    }
    while (now() - start < 3000);
    float x = __uint_as_float(args.zero + 0x3f000000u), factor = x;
    int sum = 0, longest = 0, shortest = LONG;
    #pragma unroll 1
    for (int round = 0; round < 34; ++round) {
        const int begin = now();
        #pragma unroll
        for (int i = 0; i < 20; ++i) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x) : "f"(factor));
        need(__float_as_uint(x), args.out);
        if (lane() == 0) arrive(b);
        const bool good = in_time(b, round % 2);
        const int cycles = now() - begin;
        if (!good) { shortest = sum = longest = -1; break; }
        // the first rounds fetch the instructions
        if (round < 2) continue;
        sum += cycles, longest = max(longest, cycles), shortest = min(shortest, cycles);
    }
    note(args, 0, sum / 32);
    note(args, 1, longest);
    note(args, 2, shortest);
}

// ---- eight products m64n32k16 by warps 0 to 3, beside eight other warps ----
// a: 0 none, 1 left factors from registers, 2 from shared memory; b: what the others do
ON_DEVICE void wgmma_keys_shared(float (&d)[16], Description a, Description b) {
    asm volatile("{\n.reg .b64 a, b;\nmov.b64 a, {%16,%17};\nmov.b64 b, {%18,%19};\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NAMES16 "}, a, b, 1, 1, 1, 0, 0;\n}"
        : LIST16(d, 0) : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high));
}
template <bool registers> ON_DEVICE void eight_products(const Args& args, unsigned from, int start) {
    const Description right = describe(in_units(from), 0, 16, 1024, 1), left = describe(in_units(from), 8192, 16, 1024, 1);
    unsigned a[8][4];
    for (int k = 0; k < 8; ++k)
        for (int i = 0; i < 4; ++i) a[k][i] = registers ? read_word(from + 4 * threadIdx.x + 512 * (4 * k + i)) : 0;
    float d[16] = {};
    int sum = 0, longest = 0, rounds = 0;
    while (now() - start < 3000);
    // a number of rounds, not a time: four warps that read the clock do not always leave together, and a product needs all four
    #pragma unroll 1
    for (; rounds < 80; ++rounds) {
        const int begin = now();
        wgmma_fence();
        #pragma unroll
        for (int k = 0; k < 8; ++k) {
            if (registers) wgmma_keys(d, a[k], right.at(k % 4 * 32 + k / 4 * 4096), 1);
            else wgmma_keys_shared(d, left.at(k % 4 * 32 + k / 4 * 8192), right.at(k % 4 * 32 + k / 4 * 4096));
        }
        wgmma_commit();
        wgmma_wait<0>();
        const int cycles = now() - begin;
        sum += cycles, longest = max(longest, cycles);
    }
    pin(d);
    for (int i = 1; i < 16; ++i) d[0] += d[i];
    need(__float_as_uint(d[0]), args.out);
    note(args, 0, sum);
    note(args, 1, longest);
    note(args, 2, rounds);
}
extern "C" __global__ void __launch_bounds__(384) machine_products(const Args args) {
    const unsigned base = shared_address(memory), from = base + DATA;
    fill(from, 32768, false);
    fence_async();
    __syncthreads();
    const int start = now(), length = 60000;
    if (warp() < 4) {
        if (args.a == 1) eight_products<true>(args, from, start);
        if (args.a == 2) eight_products<false>(args, from, start);
    } else {
        const int rounds = busy(args, args.b, from, 0, start, length, 0);
        note(args, 0, rounds);
        note(args, 1, now() - start);
    }
}
