// Runs a .cu file, as it stands, on a CPU: one thread block at a time, each CUDA thread a coroutine that gives way at
// barriers only.
//
// Between two barriers the threads run one after another, in an order that `seed` shuffles: if the answer depends on it, a
// barrier is missing. Shared memory starts as nan. It shows indices, masks and barriers; it says nothing about speed or a
// GPU's last bits.
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __align__(bytes)
#define __grid_constant__
#define __launch_bounds__(...)

static struct { unsigned x; } threadIdx, blockIdx;
// a thread starts through its ucontext, which brings its stack, and then changes places by jumps: no system call
static ucontext_t start[1024];
static jmp_buf scheduler, thread[1024];
static bool started[1024], finished[1024];
static int threads;
static long long progress;    // barriers opened and threads finished

struct Barrier { int arrived = 0; long long opened = 0; };
static Barrier block_barrier, warp_barrier[32];

static void wait(Barrier& barrier, int expected) {
    const long long now = barrier.opened;
    if (++barrier.arrived == expected) {
        barrier.arrived = 0, ++barrier.opened, ++progress;
        return;
    }
    while (barrier.opened == now)
        if (!_setjmp(thread[threadIdx.x])) _longjmp(scheduler, 1);
}
static void __syncthreads() { wait(block_barrier, threads); }
static void __syncwarp() { wait(warp_barrier[threadIdx.x / 32], 32); }

static float __uint_as_float(unsigned x) { float y; std::memcpy(&y, &x, 4); return y; }
static unsigned __float_as_uint(float x) { unsigned y; std::memcpy(&y, &x, 4); return y; }
struct alignas(16) float4 { float x, y, z, w; };
static float rsqrtf(float x) { return 1 / std::sqrt(x); }
static float __shfl_xor_sync(unsigned, float x, int lanes) {
    static float all[32][32];    // [warp][lane]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    all[warp][lane] = x;
    __syncwarp();
    const float y = all[warp][lane ^ lanes];
    __syncwarp();
    return y;
}

alignas(16) unsigned char memory[227 << 10];    // the dynamic shared memory of a block
#include SOURCE

static void (*kernel)(const Args);
static const Args* arguments;
static void body() {
    kernel(*arguments);
    finished[threadIdx.x] = true, ++progress;
    _longjmp(scheduler, 1);
}
static void resume(int i) {
    threadIdx.x = i;
    if (finished[i] || _setjmp(scheduler)) return;
    if (started[i]) _longjmp(thread[i], 1);
    started[i] = true;
    setcontext(&start[i]);
}

// runs `blocks` blocks of kernel number `which`; returns 1 if some threads wait at a barrier that others never reach
extern "C" int run(int which, long long blocks, int block_size, const Args* args, unsigned seed) {
    static std::vector<std::vector<char>> stack(1024, std::vector<char>(128 << 10));
    void (*kernels[])(const Args) = {KERNELS};
    kernel = kernels[which], arguments = args, threads = block_size;
    for (long long b = 0; b < blocks; ++b) {
        blockIdx.x = b;
        std::memset(memory, 0xff, sizeof memory);
        block_barrier = {};
        for (Barrier& barrier : warp_barrier) barrier = {};
        for (int i = 0; i < threads; ++i) {
            started[i] = finished[i] = false;
            getcontext(&start[i]);
            start[i].uc_stack.ss_sp = stack[i].data();
            start[i].uc_stack.ss_size = stack[i].size();
            makecontext(&start[i], body, 0);
        }
        for (long long before = -1; !std::all_of(finished, finished + threads, [](bool f) { return f; });) {
            if (progress == before) return 1;
            before = progress;
            const unsigned shift = seed >> 16, step = seed % 4096 * 6 + 1;    // prime to 2^m and 3 2^m threads: visits each once
            for (int i = 0; i < threads; ++i) resume(seed ? (i * step + shift) % threads : i);
            if (seed) seed = seed * 1664525u + 1013904223u;
        }
    }
    return 0;
}
