// What the kernels of machine.py share: arguments, clocks, waits that give up, warps that keep a unit busy. HOPPER is the path of
// hopper.cuh. Each kernel writes differences of clocks, four numbers a warp; -1 where a wait took too long.
#pragma once
#include HOPPER

constexpr int NUMBERS = 4;          // that a warp writes
constexpr int LONG = 1 << 21;       // cycles after which a wait gives up
constexpr unsigned DATA = 1024;     // where data begin in shared memory, behind the barriers

struct Args {
    int* out;                       // [blocks][warps][NUMBERS]
    int what, a, b, c;
    unsigned zero;                  // 0, which the compiler does not know
};

// of all 64 bits: the 32 alone are read by a slower instruction (S2UR) where all lanes need the same. The upper half hardly ever
// changes between two calls
ON_DEVICE int now() {
    int t;
    asm volatile("{\n.reg .b64 t;\n.reg .b32 high;\nmov.u64 t, %%clock64;\nmov.b64 {%0, high}, t;\nadd.u32 %0, %0, high;\n}"
        : "=r"(t) :: "memory");
    return t;
}
ON_DEVICE int lane() { return threadIdx.x % 32; }
ON_DEVICE int warp() { return threadIdx.x / 32; }
// x has to be there before the program goes on: the store never happens
ON_DEVICE void need(unsigned x, int* out) {
    if (x == 0x7fb12345u) asm volatile("st.global.b32 [%0], %1;" :: "l"(out), "r"(x) : "memory");
}
ON_DEVICE void note(const Args& args, int n, int value) {
    if (lane() == 0) args.out[(blockIdx.x * (blockDim.x / 32) + warp()) * NUMBERS + n] = value;
}
// 0 if the phase has ended, else 1
ON_DEVICE unsigned try_wait(unsigned b, unsigned parity) {
    unsigned open;
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 0, 1, p;\n}"
        : "=r"(open) : "r"(b), "r"(parity) : "memory");
    return open;
}
// whether the phase ended before long
ON_DEVICE bool in_time(unsigned b, unsigned parity) {
    const int start = now();
    while (try_wait(b, parity)) if (now() - start > LONG) return false;
    return true;
}
// shared memory from here on is small bf16 numbers of either sign, or zeros
ON_DEVICE void fill(unsigned from, int bytes, bool zeros) {
    for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) {
        const unsigned x = i * 2654435761u;
        write(from + 4 * i, zeros ? 0u : (x & 0x807f807fu) | 0x3f003f00u);
    }
}
// of 16 bytes; volatile, so that a loop keeps it although nobody writes there
ON_DEVICE void load_four(unsigned (&x)[4], unsigned a) {
    asm volatile("ld.volatile.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(a));
}
extern __shared__ __align__(1024) unsigned char memory[];

// ---- warps that keep a unit busy for `length` cycles -> rounds ----
enum Busy { IDLE, MULTIPLY, MULTIPLY_AND_LOAD, LOAD_TILES, PRODUCTS, WAIT };
constexpr int MULTIPLIES = 64, MULTIPLIES_BESIDE = 48, LOADS_BESIDE = 16, TILES = 2, MMAS = 16;  // in a round

template <int n> ON_DEVICE void multiplies(float (&x)[16], float factor) {
    #pragma unroll
    for (int i = 0; i < n; ++i) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x[i % 16]) : "f"(factor));
}
// a: data; b: a barrier whose first phase never ends; period: cycles from a round's start to the next, for LOAD_TILES
ON_DEVICE int busy(const Args& args, int kind, unsigned a, unsigned b, int start, int length, int period) {
    int rounds = 0;
    float x[16], factor = __uint_as_float(args.zero + 0x3f000000u + 1024 * lane());
    for (int i = 0; i < 16; ++i) x[i] = factor;
    if (kind == MULTIPLY) {
        #pragma unroll 1
        for (; now() - start < length; ++rounds) multiplies<MULTIPLIES>(x, factor);
    } else if (kind == MULTIPLY_AND_LOAD) {
        unsigned y[LOADS_BESIDE][4];
        #pragma unroll 1
        for (; now() - start < length; ++rounds) {
            #pragma unroll
            for (int i = 0; i < LOADS_BESIDE; ++i) load_four(y[i], a + 512 * i);
            multiplies<MULTIPLIES_BESIDE>(x, factor);
            #pragma unroll
            for (int i = 0; i < LOADS_BESIDE; ++i) x[i] += __uint_as_float(y[i][0] + y[i][1] + y[i][2] + y[i][3]);
        }
    } else if (kind == LOAD_TILES) {
        unsigned sum = 0, y[TILES][4];
        for (int next = now(); now() - start < length; ++rounds) {
            #pragma unroll
            for (int i = 0; i < TILES; ++i) load_tiles(y[i], a + 16 * lane() + 512 * i);
            #pragma unroll
            for (int i = 0; i < TILES; ++i) sum ^= y[i][0] ^ y[i][1] ^ y[i][2] ^ y[i][3];
            for (next += period; period && now() - next < 0;);
        }
        need(sum, args.out);
    } else if (kind == PRODUCTS) {
        float c[8][4] = {};
        unsigned f[6];
        for (int i = 0; i < 6; ++i) f[i] = read_word(a + 4 * lane() + 128 * i);
        const unsigned left[4] = {f[0], f[1], f[2], f[3]};
        #pragma unroll 1
        for (; now() - start < length; ++rounds)
            #pragma unroll
            for (int i = 0; i < MMAS; ++i) multiply(c[i % 8], left, f[4], f[5]);
        for (int i = 0; i < 8; ++i) x[0] += c[i][0] + c[i][1] + c[i][2] + c[i][3];
    } else if (kind == WAIT) {
        while (now() - start < length) rounds += try_wait(b, 0);
    }
    for (int i = 1; i < 16; ++i) x[0] += x[i];
    need(__float_as_uint(x[0]), args.out);
    return rounds;
}
