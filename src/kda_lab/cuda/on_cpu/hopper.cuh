// hopper.cuh in plain C++, for the threads of run.cpp: what each instruction does to memory, at once instead of in the
// background. Two thread blocks of a cluster are one block of run.cpp: CTAS x THREADS threads, a part of memory each.
#pragma once
#include <functional>
#include <map>

#define ON_DEVICE static inline
#define __cluster_dims__(...)

struct alignas(8) Two { float x, y; };
struct alignas(16) Four { float x, y, z, w; };

ON_DEVICE int thread_index() { return threadIdx.x % THREADS; }
ON_DEVICE int cluster_rank() { return threadIdx.x / THREADS; }
ON_DEVICE int lane_number() { return threadIdx.x % 32; }
ON_DEVICE int block_number() { return blockIdx.x * CTAS + cluster_rank(); }

// the shared memory of each thread block; an address carries the number of its block in the high bits
static constexpr unsigned BLOCK = 1 << 20, BYTES = SHARED_BYTES;
static unsigned char shared[2][BYTES];
struct Mbarrier { long long count, missing, bytes; unsigned phase; };
static std::map<unsigned, Mbarrier> mbarriers;
static Barrier named[2][16];

// Copies land late, in any order: at a time drawn when they start, by whoever waits then. Another number than 0 draws other
// times, longer ones, and makes one warp slow
extern "C" { int jitter = 0; }
// number: of a store among those of its thread; 0: not a store
struct Copy { long long due; int thread, number; std::function<void()> land; };
static std::vector<Copy> copies;
static int stores[1024];
static long long now;
static unsigned draws;
ON_DEVICE unsigned draw(unsigned below) { return (draws = draws * 1664525u + 1013904223u) / 65536 % below; }
ON_DEVICE void start_copy(bool store, std::function<void()> land) {
    const int thread = threadIdx.x;
    copies.push_back({now + draw(jitter ? 4000 : 40), thread, store ? ++stores[thread] : 0, land});
}
ON_DEVICE void land_copies() {
    for (size_t i = 0; i < copies.size(); ++i)
        if (copies[i].due <= now) {
            const auto land = copies[i].land;
            copies.erase(copies.begin() + i), land(), ++progress, i = -1;
        }
    progress += !copies.empty();
}
ON_DEVICE void give_way() {
    ++now, land_copies();
    if (!_setjmp(thread[threadIdx.x])) _longjmp(scheduler, 1);
}
ON_DEVICE void dawdle() {
    if (jitter && int(threadIdx.x) / 32 == jitter % (CTAS * THREADS / 32))
        for (int rounds = draw(400); rounds > 0; --rounds) ++progress, give_way();
}
// called once by every thread: the first one of a launch or block finds fresh memory
ON_DEVICE unsigned shared_address(const void*) {
    static long long calls = 0;
    if (calls++ % (CTAS * THREADS) == 0) {
        std::memset(shared, 0xff, sizeof shared);
        mbarriers.clear();
        copies.clear(), draws = jitter;
        for (auto& block : named) for (Barrier& b : block) b = {};
    }
    return cluster_rank() * BLOCK;
}
ON_DEVICE unsigned char* at(unsigned a) {
    if (a % BLOCK >= BYTES || a / BLOCK >= 2) std::abort();
    return shared[a / BLOCK] + a % BLOCK;
}
template <class X> ON_DEVICE X fetch_as(unsigned a) {
    if (a % sizeof(X)) std::abort();    // every access is aligned to its size
    X x;
    std::memcpy(&x, at(a), sizeof x);
    return x;
}
template <class X> ON_DEVICE void put(unsigned a, X x) {
    if (a % sizeof(X)) std::abort();
    std::memcpy(at(a), &x, sizeof x);
}

ON_DEVICE unsigned bf16(float x) { return __nv_bfloat16(x).bits; }
ON_DEVICE unsigned pack(float low, float high) { return bf16(low) | bf16(high) << 16; }
ON_DEVICE float low(unsigned x) { return __uint_as_float(x << 16); }
ON_DEVICE float high(unsigned x) { return __uint_as_float(x & 0xffff0000u); }
ON_DEVICE unsigned multiply_pairs(unsigned x, unsigned y) { return pack(low(x) * low(y), high(x) * high(y)); }
ON_DEVICE float flushed(float x) { return std::fabs(x) < 0x1p-126f ? 0 : x; }
ON_DEVICE float exp2_unit(float x) { return flushed(std::exp2(x)); }
ON_DEVICE float exp2_of_minus(float x) { return exp2_unit(-x); }
ON_DEVICE float log2_unit(float x) { return std::log2(flushed(x)); }
ON_DEVICE float reciprocal(float x) { return flushed(1 / x); }
ON_DEVICE float inverse_root(float x) { return 1 / std::sqrt(x); }

ON_DEVICE unsigned read_word(unsigned a) { return fetch_as<unsigned>(a); }
ON_DEVICE float read_float(unsigned a) { return fetch_as<float>(a); }
ON_DEVICE Two read_two(unsigned a) { return fetch_as<Two>(a); }
ON_DEVICE Four read_four(unsigned a) { return fetch_as<Four>(a); }
ON_DEVICE void write(unsigned a, unsigned x) { put(a, x); }
ON_DEVICE void write(unsigned a, float x) { put(a, x); }
ON_DEVICE void write(unsigned a, float x, float y) { put(a, Two{x, y}); }
ON_DEVICE void write(unsigned a, Four x) { put(a, x); }
ON_DEVICE void write(unsigned a, unsigned x, unsigned y, unsigned z, unsigned w) {
    struct Words { unsigned x, y, z, w; };
    put(a, Words{x, y, z, w});
}

template <int bytes> ON_DEVICE unsigned fetch_bits(const void* p) {
    unsigned x = 0;
    std::memcpy(&x, p, bytes);
    return x;
}

ON_DEVICE void prefetch(const void*, unsigned) {}
ON_DEVICE void publish() {}
// once: who waits goes on at the first time
ON_DEVICE void raise(unsigned* flag) {
    if (*flag) std::abort();
    *flag = 1;
}
// thread blocks run one after the other: who waits for an earlier one never waits
ON_DEVICE void wait_for(const unsigned* flag) { if (!*flag) std::abort(); }

// what the 32 lanes of each warp show each other
static unsigned lanes[32][32][8];
#define EXCHANGE const int warp = threadIdx.x / 32, lane = threadIdx.x % 32; auto& all = lanes[warp]
template <class X> ON_DEVICE X from_lane(X x, int from) {
    EXCHANGE;
    std::memcpy(&all[lane][0], &x, 4);
    __syncwarp();
    std::memcpy(&x, &all[from % 32][0], 4);
    __syncwarp();
    return x;
}
ON_DEVICE void tiles(unsigned (&x)[4], unsigned a, bool transposed) {
    EXCHANGE;
    all[lane][0] = a;
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        unsigned half[2];
        for (int e = 0; e < 2; ++e) {
            const int row = transposed ? 2 * (lane % 4) + e : lane / 4, column = transposed ? lane / 4 : 2 * (lane % 4) + e;
            if (all[8 * i + row][0] % 16) std::abort();
            half[e] = fetch_as<unsigned short>(all[8 * i + row][0] + 2 * column);
        }
        x[i] = half[0] | half[1] << 16;
    }
    __syncwarp();
}
ON_DEVICE void load_tiles(unsigned (&x)[4], unsigned a) { tiles(x, a, false); }
ON_DEVICE void load_tiles_transposed(unsigned (&x)[4], unsigned a) { tiles(x, a, true); }
ON_DEVICE void put_tiles(unsigned a, const unsigned (&x)[4], bool transposed) {
    EXCHANGE;
    all[lane][0] = a;
    __syncwarp();
    for (int i = 0; i < 4; ++i)
        for (int e = 0; e < 2; ++e) {
            const int row = transposed ? 2 * (lane % 4) + e : lane / 4, column = transposed ? lane / 4 : 2 * (lane % 4) + e;
            put<unsigned short>(all[8 * i + row][0] + 2 * column, x[i] >> 16 * e);
        }
    __syncwarp();
}
ON_DEVICE void store_tiles(unsigned a, unsigned x, unsigned y, unsigned z, unsigned w) { put_tiles(a, {x, y, z, w}, false); }
ON_DEVICE void store_tiles_transposed(unsigned a, unsigned x, unsigned y, unsigned z, unsigned w) {
    put_tiles(a, {x, y, z, w}, true);
}

ON_DEVICE float part(unsigned x, int e) { return e ? high(x) : low(x); }
// entry (row, k) of a [16, 16] that the warp holds as `a`
ON_DEVICE float entry(const unsigned (&all)[32][8], int row, int k) {
    return part(all[4 * (row % 8) + k % 8 / 2][row / 8 + 2 * (k / 8)], k % 2);
}
ON_DEVICE void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    EXCHANGE;
    for (int i = 0; i < 4; ++i) all[lane][i] = a[i];
    all[lane][4] = b0, all[lane][5] = b1;
    __syncwarp();
    for (int e = 0; e < 4; ++e)
        for (int k = 0; k < 16; ++k)
            c[e] += entry(all, lane / 4 + 8 * (e / 2), k) * part(all[4 * (2 * (lane % 4) + e % 2) + k % 8 / 2][4 + k / 8], k % 2);
    __syncwarp();
}
ON_DEVICE void multiply_first(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    for (float& x : c) x = 0;
    multiply(c, a, b0, b1);
}
ON_DEVICE bool elected() { return lane_number() == 0; }
ON_DEVICE bool any_lane(bool mine) {
    EXCHANGE;
    all[lane][0] = mine;
    __syncwarp();
    bool any = false;
    for (int i = 0; i < 32; ++i) any |= all[i][0];
    __syncwarp();
    return any;
}

ON_DEVICE void barrier(int number, int threads) { wait(named[cluster_rank()][number], threads), dawdle(); }
ON_DEVICE void arrive_at_barrier(int number, int threads) {
    Barrier& b = named[cluster_rank()][number];
    if (++b.arrived == threads) b.arrived = 0, ++b.opened, ++progress;
}
static int votes[2][16];
ON_DEVICE bool barrier_any(int number, int threads, bool mine) {
    int& all = votes[cluster_rank()][number];
    all += mine, barrier(number, threads);
    const bool any = all;
    barrier(number, threads), all -= mine;
    return any;
}
ON_DEVICE void end_phase(Mbarrier& b) {
    if (b.missing < 0) std::abort();    // more arrivals than were promised
    if (!b.missing && !b.bytes) ++b.phase, b.missing = b.count, ++progress;
}
ON_DEVICE Mbarrier& mbarrier(unsigned b) {
    if (!mbarriers.count(b)) std::abort();
    return mbarriers[b];
}
ON_DEVICE void mbarrier_init(unsigned b, unsigned count) { mbarriers[b] = {count, count, 0, 0}; }
ON_DEVICE void mbarriers_are_ready() {}
ON_DEVICE void arrive(unsigned b) { --mbarrier(b).missing, end_phase(mbarrier(b)); }
ON_DEVICE void arrive_and_expect(unsigned b, unsigned bytes) { mbarrier(b).bytes += bytes, arrive(b); }
ON_DEVICE void wait(unsigned b, unsigned parity) {
    while (mbarrier(b).phase % 2 == parity) give_way();
    ++progress, dawdle();
}
ON_DEVICE bool has_ended(unsigned b, unsigned parity) { return mbarrier(b).phase % 2 != parity; }
ON_DEVICE bool same_in_all_lanes(bool answer) { return any_lane(answer); }
ON_DEVICE void landed(unsigned b, unsigned bytes) { mbarrier(b).bytes -= bytes, end_phase(mbarrier(b)); }
ON_DEVICE void fence_async() {}

// made by hopper.py in place of the driver's map
struct alignas(64) TensorMap {
    char* data;
    // bytes of an entry; channels in a row, rows and slices of the head dim in a box; extents; strides of token, slice, head,
    // batch
    long long bytes, width, rows, slices, size[5], stride[4];
    char rest[128 - 14 * 8];
};
template <class F> ON_DEVICE void each_unit(const TensorMap& m, int slices, int token, int slice, int head, int batch, F visit) {
    const int units = m.width * m.bytes / 16;
    for (int s = 0; s < slices; ++s)
        for (int row = 0; row < m.rows; ++row)
            for (int u = 0; u < units; ++u) {
                const bool there = token + row < m.size[1] && slice + s < m.size[2] && head < m.size[3] && batch < m.size[4];
                const unsigned place = (s * m.rows + row) * units * 16 + 16 * (units == 8 ? u ^ row % 8 : u);
                visit(place, there ? m.data + (token + row) * m.stride[0] + (slice + s) * m.stride[1] + head * m.stride[2]
                    + batch * m.stride[3] + 16 * u : nullptr);
            }
}
ON_DEVICE void load_box(unsigned to, const TensorMap* map, int token, int slice, int head, int batch, unsigned b) {
    const TensorMap m = *map;
    start_copy(false, [=] {
        each_unit(m, m.slices, token, slice, head, batch, [&](unsigned place, char* from) {
            from ? std::memcpy(at(to + place), from, 16) : std::memset(at(to + place), 0, 16);
        });
        landed(b, m.slices * m.rows * m.width * m.bytes);
    });
}
ON_DEVICE void store_box(const TensorMap* map, int token, int slice, int head, int batch, unsigned from) {
    const TensorMap m = *map;
    start_copy(true, [=] {
        each_unit(m, m.slices, token, slice, head, batch, [&](unsigned place, char* to) {
            if (to) std::memcpy(to, at(from + place), 16);
        });
    });
}
template <int left> ON_DEVICE void wait_for_stores() {
    const int thread = threadIdx.x, last = stores[thread] - left;
    while (std::any_of(copies.begin(), copies.end(), [&](auto& c) { return c.thread == thread && c.number && c.number <= last; }))
        give_way();
    ++progress;
}

ON_DEVICE unsigned in_block(unsigned a, int rank) { return rank * BLOCK + a % BLOCK; }
ON_DEVICE void arrive_there(unsigned b) { arrive(b); }
ON_DEVICE void arrive_and_expect_there(unsigned b, unsigned bytes) { arrive_and_expect(b, bytes); }
ON_DEVICE void copy_there(unsigned to, unsigned from, unsigned bytes, unsigned b) {
    start_copy(false, [=] { std::memcpy(at(to), at(from), bytes), landed(b, bytes); });
}
ON_DEVICE void write_there(unsigned to, float x, float y, unsigned b) {
    start_copy(false, [=] { write(to, x, y), landed(b, 8); });
}
ON_DEVICE void cluster_barrier() { __syncthreads(); }

ON_DEVICE void wgmma_fence() {}
ON_DEVICE void wgmma_commit() {}
template <int left> ON_DEVICE void wgmma_wait() {}
template <int N> ON_DEVICE void pin(float (&)[N]) {}
struct Description {
    unsigned address, stride1, stride2, swizzled;
    Description at(unsigned bytes) const { return {address + bytes, stride1, stride2, swizzled}; }
};
ON_DEVICE unsigned in_units(unsigned a) { return a % BLOCK / 16; }
ON_DEVICE Description describe(unsigned units, unsigned offset, unsigned stride1, unsigned stride2, unsigned swizzled) {
    if (units >= 1 << 14) std::abort();    // more than the field holds
    const unsigned a = cluster_rank() * BLOCK + 16 * units;
    if ((a + offset) % (swizzled ? 32 : 16)) std::abort();
    return {a + offset, stride1, stride2, swizzled};
}
template <int N, class F> ON_DEVICE void product(float (&d)[N], const unsigned (&a)[4], F place, int keep) {
    EXCHANGE;
    for (int i = 0; i < 4; ++i) all[lane][i] = a[i];
    __syncwarp();
    for (int i = 0; i < N; ++i) {
        const int n = i / 4 * 8 + 2 * (lane % 4) + i % 2, row = lane / 4 + 8 * (i % 4 / 2);
        float sum = keep ? d[i] : 0;
        for (int k = 0; k < 16; ++k) sum += entry(all, row, k) * low(fetch_as<unsigned short>(place(k, n)));
        d[i] = sum;
    }
    __syncwarp();
}
ON_DEVICE unsigned swizzle(unsigned a) { return a ^ (a >> 7 & 7) << 4; }
template <int N> ON_DEVICE void wgmma_keys(float (&d)[N], const unsigned (&a)[4], Description b, int keep) {
    product(d, a, [&](int k, int n) {
        return b.swizzled ? swizzle(b.address + n / 8 * b.stride2 + n % 8 * 128 + 2 * k)
            : b.address + k / 8 * b.stride1 + n / 8 * b.stride2 + n % 8 * 16 + k % 8 * 2;
    }, keep);
}
template <int N> ON_DEVICE void wgmma_tokens(float (&d)[N], const unsigned (&a)[4], Description b) {
    product(d, a, [&](int k, int n) {
        return swizzle(b.address + n / 64 * b.stride1 + k / 8 * b.stride2 + k % 8 * 128 + n % 64 * 2);
    }, 1);
}
template <int> ON_DEVICE void more_registers() {}
template <int> ON_DEVICE void fewer_registers() {}
