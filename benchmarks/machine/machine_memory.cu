// Kernels for machine.py about instructions, shared memory and local memory
#include <machine.cuh>

// ---- one instruction: how many cycles apart, and how long until its result can be used ----
// run: the i-th of a stream; chain: 0, by an instruction that needs `a`; what else it returns goes to `sink`
struct Base {
    static constexpr int words = 1;
    static constexpr unsigned step = 512;
    static constexpr bool stores = false;
};
struct LoadWord : Base {
    static __device__ void run(unsigned a, int, unsigned (&x)[1], unsigned) { x[0] = read_word(a); }
    static __device__ unsigned chain(unsigned a, unsigned, int, unsigned&) { return read_word(a); }
};
template <void (*load)(unsigned (&)[4], unsigned)> struct Load : Base {
    static constexpr int words = 4;
    static __device__ void run(unsigned a, int, unsigned (&x)[4], unsigned) { load(x, a); }
    static __device__ unsigned chain(unsigned a, unsigned, int, unsigned& sink) {
        unsigned x[4];
        load(x, a);
        sink ^= x[1] ^ x[2] ^ x[3];
        return x[0];
    }
};
struct StoreWord : Base {
    static constexpr bool stores = true;
    static __device__ void run(unsigned a, int, unsigned (&)[1], unsigned zero) { write(a, zero); }
    static __device__ unsigned chain(unsigned a, unsigned zero, int, unsigned&) { write(a, zero); return read_word(a + zero); }
};
template <void (*store)(unsigned, unsigned, unsigned, unsigned, unsigned)> struct Store : Base {
    static constexpr bool stores = true;
    static __device__ void run(unsigned a, int, unsigned (&)[1], unsigned zero) { store(a, zero, zero, zero, zero); }
    static __device__ unsigned chain(unsigned a, unsigned zero, int, unsigned&) {
        store(a, zero, zero, zero, zero);
        return read_word(a + zero);
    }
};
struct Shuffle : Base {
    static __device__ unsigned from(unsigned x, int lane) {
        unsigned y;
        asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, -1;" : "=r"(y) : "r"(x), "r"(lane));
        return y;
    }
    static __device__ void run(unsigned a, int i, unsigned (&x)[1], unsigned) { x[0] = from(a, i % 32); }
    static __device__ unsigned chain(unsigned a, unsigned, int i, unsigned&) { return from(a, i % 32) ^ a; }
};
struct TryWait : Base {
    static constexpr unsigned step = 0;
    // the phase before a barrier's first one has ended
    static __device__ void run(unsigned a, int, unsigned (&x)[1], unsigned) { x[0] = try_wait(a, 1); }
    static __device__ unsigned chain(unsigned a, unsigned, int, unsigned&) { return try_wait(a, 1); }
};
template <bool one> struct Arrive : Base {
    static constexpr unsigned step = 0;
    static constexpr bool stores = true;
    static __device__ void run(unsigned a, int, unsigned (&)[1], unsigned) { if (!one || lane() == 0) arrive(a); }
    // to the end of the phase and back: the barrier at a has a count of one
    static __device__ unsigned chain(unsigned a, unsigned, int i, unsigned&) {
        if (lane() == 0) arrive(a);
        unsigned open = 1;
        #pragma unroll 1
        for (int tries = 0; open && tries < 1000; ++tries) open = try_wait(a, i % 2);
        return 8 * open;    // still an address of a barrier
    }
};

// cycles of n in a row, from the first until the last one's result is there
template <class Op, int n> ON_DEVICE int stream(const Args& args, unsigned a, unsigned probe, unsigned& sink) {
    unsigned x[n][Op::words];
    const int start = now();
    #pragma unroll
    for (int i = 0; i < n; ++i) Op::run(a + i * Op::step, i, x[i], args.zero);
    // behind stores a load, which shared memory serves after them
    need(Op::stores ? read_word(probe) : x[n - 1][0], args.out);
    const int cycles = now() - start;
    if (!Op::stores)
        #pragma unroll
        for (int i = 0; i < n; ++i)
            for (int w = 0; w < Op::words; ++w) sink ^= x[i][w];
    return cycles;
}
template <class Op, int n> ON_DEVICE int chain(const Args& args, unsigned a, unsigned& sink) {
    const int start = now();
    #pragma unroll
    for (int i = 0; i < n; ++i) a += Op::chain(a, args.zero, i, sink);
    need(a, args.out);
    return now() - start;
}
template <class Op> ON_DEVICE void cost(const Args& args, unsigned a, unsigned chained, unsigned probe) {
    unsigned sink = 0;
    int t[NUMBERS];
    // the first rounds fetch the instructions
    #pragma unroll 1
    for (int round = 0; round < 3; ++round) {
        __syncthreads();
        t[0] = stream<Op, 16>(args, a, probe, sink);
        __syncthreads();
        t[1] = stream<Op, 48>(args, a, probe, sink);
        __syncthreads();
        t[2] = chain<Op, 8>(args, chained, sink);
        __syncthreads();
        t[3] = chain<Op, 24>(args, chained, sink);
    }
    need(sink, args.out);
    for (int n = 0; n < NUMBERS; ++n) note(args, n, t[n]);
}

// 10 loads of 16 bytes and 30 multiplications, a round of a loop, `ahead`: with what the round before has loaded
template <bool ahead> ON_DEVICE int loads_and_sums(const Args& args, unsigned a, int rounds) {
    unsigned x[10][4], y[10][4];
    float sums[30];
    for (int j = 0; j < 30; ++j) sums[j] = __uint_as_float(args.zero);
    const float factor = __uint_as_float(args.zero + 0x3f000000u);
    auto load = [&](unsigned (&x)[10][4], unsigned from) {
        #pragma unroll
        for (int i = 0; i < 10; ++i) load_four(x[i], from + 512 * i);
    };
    auto add = [&](const unsigned (&x)[10][4]) {
        #pragma unroll
        for (int j = 0; j < 30; ++j) asm volatile("fma.rn.f32 %0, %1, %2, %0;"
            : "+f"(sums[j]) : "f"(__uint_as_float(x[j / 3][j % 3])), "f"(factor));
    };
    load(x, a);
    const int start = now();
    #pragma unroll 1
    for (int r = 0; r < rounds; r += 2) {
        load(ahead ? y : x, a + 5120);
        add(x);
        load(x, a);
        add(ahead ? y : x);
    }
    float sum = 0;
    for (int j = 0; j < 30; ++j) sum += sums[j];
    for (int i = 0; i < 10; ++i) sum += __uint_as_float(x[i][0]);
    need(__float_as_uint(sum), args.out);
    return now() - start;
}

// what: the instruction; a: how lanes spread over 16-byte words, c: bytes of a word
extern "C" __global__ void __launch_bounds__(256) machine_costs(const Args args) {
    const unsigned base = shared_address(memory);
    // 0 all lanes one word; 1 l % 4; 2 l / 4; 3 each its own
    const int spread[4] = {0, lane() % 4, lane() / 4, lane()};
    const unsigned data = base + DATA + spread[args.a] * args.c;
    const unsigned many = base + 512, own = base + 8 * warp();
    if (threadIdx.x == 0) {
        mbarrier_init(many, 1 << 19);
        for (int i = 0; i < 8; ++i) mbarrier_init(base + 8 * i, 1);
        mbarriers_are_ready();
    }
    fill(base + DATA, 48 * 512, true);
    __syncthreads();
    switch (args.what) {
        case 0: cost<LoadWord>(args, data, data, data); break;
        case 1: cost<Load<load_four>>(args, data, data, data); break;
        case 2: cost<Load<load_tiles>>(args, data, data, data); break;
        case 3: cost<Load<load_tiles_transposed>>(args, data, data, data); break;
        case 4: cost<StoreWord>(args, data, data, data); break;
        case 5: cost<Store<write>>(args, data, data, data); break;
        case 6: cost<Store<store_tiles>>(args, data, data, data); break;
        case 7: cost<Shuffle>(args, data, data, data); break;
        case 8: cost<TryWait>(args, own, own, data); break;
        case 9: cost<Arrive<true>>(args, many, own, data); break;
        case 10: cost<Arrive<false>>(args, many, own, data); break;
        default:
            for (int rounds = 32; rounds <= 96; rounds += 64) {
                __syncthreads();
                note(args, rounds > 32, loads_and_sums<false>(args, data, rounds));
                __syncthreads();
                note(args, 2 + (rounds > 32), loads_and_sums<true>(args, data, rounds));
            }
    }
}

// ---- a load of 16 bytes while eleven other warps load tiles. b: their period, 0: without pause, -1: idle ----
extern "C" __global__ void __launch_bounds__(384) machine_loaded(const Args args) {
    const unsigned base = shared_address(memory);
    fill(base + DATA, 16384, true);
    __syncthreads();
    const int start = now(), length = 20000;
    if (warp() == 0) {
        int cycles = 0;
        unsigned sink = 0, a = base + DATA;
        asm volatile("" : "+r"(a));     // kept in a register
        #pragma unroll 1
        for (int round = 0; round < 3; ++round) {
            while (now() - start < 2000 * (round + 1));
            cycles = chain<Load<load_four>, 24>(args, a, sink);
            cycles -= chain<Load<load_four>, 8>(args, a, sink);
        }
        need(sink, args.out);
        note(args, 0, cycles);
    } else {
        note(args, 0, busy(args, args.b < 0 ? IDLE : LOAD_TILES, base + DATA, 0, start, length, args.b));
    }
    note(args, 1, now() - start);
}

// ---- a stack frame: b words of it, stored and loaded, loaded only, loaded one after another ----
template <int words> ON_DEVICE void frames(const Args& args) {
    unsigned frame[16], a, sink = 0;
    asm volatile("{\n.reg .u64 t;\ncvta.to.local.u64 t, %1;\ncvt.u32.u64 %0, t;\n}" : "=r"(a) : "l"(&frame[0]) : "memory");
    auto store = [&] {
        #pragma unroll
        for (int i = 0; i < words; ++i) asm volatile("st.local.b32 [%0], %1;" :: "r"(a + 4 * i), "r"(args.zero) : "memory");
    };
    auto load = [&] {
        unsigned x[words / 4][4];
        #pragma unroll
        for (int i = 0; i < words / 4; ++i) asm volatile(
            "ld.local.b32 %0, [%4];\nld.local.b32 %1, [%4 + 4];\nld.local.b32 %2, [%4 + 8];\nld.local.b32 %3, [%4 + 12];"
            : "=r"(x[i][0]), "=r"(x[i][1]), "=r"(x[i][2]), "=r"(x[i][3]) : "r"(a + 16 * i) : "memory");
        #pragma unroll
        for (int i = 0; i < words / 4; ++i) sink |= x[i][0] | x[i][1] | x[i][2] | x[i][3];
    };
    store();
    int t[3] = {}, longest = 0;
    const int rounds = 16;
    #pragma unroll 1
    for (int round = -2; round < rounds; ++round) {
        __syncthreads();
        const int begin = now();
        store();
        load();
        need(sink, args.out);
        const int both = now() - begin;
        __syncthreads();
        const int second = now();
        load();
        need(sink, args.out);
        const int loads = now() - second;
        __syncthreads();
        const int third = now();
        #pragma unroll
        for (int i = 0; i < words; ++i) {
            unsigned x;
            asm volatile("ld.local.b32 %0, [%1];" : "=r"(x) : "r"(a + 4 * i + sink) : "memory");
            sink |= x;
        }
        need(sink, args.out);
        const int one_by_one = now() - third;
        if (round < 0) continue;
        t[0] += both, t[1] += loads, t[2] += one_by_one, longest = max(longest, loads);
    }
    note(args, 0, t[0] / rounds);
    note(args, 1, t[1] / rounds);
    note(args, 2, t[2] / rounds);
    note(args, 3, longest);
}
extern "C" __global__ void __launch_bounds__(512) machine_frames(const Args args) {
    if (args.b == 4) frames<4>(args);
    if (args.b == 8) frames<8>(args);
    if (args.b == 16) frames<16>(args);
}
