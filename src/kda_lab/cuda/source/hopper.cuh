// What the Hopper kernel uses of the machine, a function for each PTX instruction. on_cpu/hopper.cuh says the same in plain
// C++. Shared memory is addressed by 32-bit numbers, as the tensor cores and the copy engine want it.
#pragma once
#include <cuda_bf16.h>

#define ON_DEVICE static __device__ __forceinline__

ON_DEVICE int thread_index() { return threadIdx.x; }
ON_DEVICE int lane_number() { int x; asm volatile("mov.u32 %0, %%laneid;" : "=r"(x)); return x; }
ON_DEVICE int block_number() { return blockIdx.x; }
ON_DEVICE unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

struct alignas(8) Two { float x, y; };
struct alignas(16) Four { float x, y, z, w; };

// ---- arithmetic ----
// two floats as bf16, `low` in the low half, rounded to even
ON_DEVICE unsigned pack(float low, float high) {
    unsigned x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
}
// products of two pairs, each rounded once
ON_DEVICE unsigned multiply_pairs(unsigned x, unsigned y) {
    unsigned z;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
    return z;
}
ON_DEVICE float low(unsigned x) { return __uint_as_float(x << 16); }
ON_DEVICE float high(unsigned x) { return __uint_as_float(x & 0xffff0000u); }
// one instruction of the special function unit each, about 2^-22 off
ON_DEVICE float exp2_unit(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
ON_DEVICE float exp2_of_minus(float x) {    // the minus costs nothing; written in C++ it would, as it flushes
    float y;
    asm("{\n.reg .f32 t;\nneg.f32 t, %1;\nex2.approx.ftz.f32 %0, t;\n}" : "=f"(y) : "f"(x));
    return y;
}
ON_DEVICE float log2_unit(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
ON_DEVICE float reciprocal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
ON_DEVICE float inverse_root(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// ---- shared memory by address. Volatile: loads and stores keep their order, so loads stand first and stores last ----
ON_DEVICE unsigned read_word(unsigned a) { unsigned x; asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(a)); return x; }
ON_DEVICE float read_float(unsigned a) { float x; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(a)); return x; }
ON_DEVICE Two read_two(unsigned a) {
    Two x;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(a));
    return x;
}
ON_DEVICE Four read_four(unsigned a) {
    Four x;
    asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(a));
    return x;
}
ON_DEVICE void write(unsigned a, unsigned x) { asm volatile("st.shared.b32 [%0], %1;" :: "r"(a), "r"(x) : "memory"); }
ON_DEVICE void write(unsigned a, float x) { asm volatile("st.shared.f32 [%0], %1;" :: "r"(a), "f"(x) : "memory"); }
ON_DEVICE void write(unsigned a, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1,%2};" :: "r"(a), "f"(x), "f"(y) : "memory");
}
ON_DEVICE void write(unsigned a, Four x) {
    asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" :: "r"(a), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}
ON_DEVICE void write(unsigned a, unsigned x, unsigned y, unsigned z, unsigned w) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" :: "r"(a), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// a number from global memory as raw bits: converted where it is used, so that nobody waits where it is fetched
template <int bytes> ON_DEVICE unsigned fetch_bits(const void* p) {
    unsigned x;
    if (bytes == 4) {
        asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(x) : "l"(p));
        return x;
    }
    unsigned short y;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(y) : "l"(p));
    return y;
}

// asks for memory that will be read soon, as far as the L2 cache; a multiple of 16 bytes
ON_DEVICE void prefetch(const void* p, unsigned bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"((unsigned long long)p & ~15ull), "r"(bytes) : "memory");
}

// a word of global memory by which thread blocks tell each other that what they wrote before can be read
// what this thread wrote before becomes visible to other thread blocks
ON_DEVICE void publish() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
ON_DEVICE void raise(unsigned* flag) { asm volatile("st.release.gpu.global.u32 [%0], 1;" :: "l"(flag) : "memory"); }
ON_DEVICE void wait_for(const unsigned* flag) {
    unsigned up;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(up) : "l"(flag) : "memory"); while (!up);
}

// ---- a warp and its fragments ----
ON_DEVICE float from_lane(float x, int lane) { return __shfl_sync(~0u, x, lane); }
ON_DEVICE int from_lane(int x, int lane) { return __shfl_sync(~0u, x, lane); }
// ldmatrix: four 8x8 tiles of bf16; lane 8i + r gives the address of row r of tile i. Lane l gets columns 2 (l % 4), + 1 of
// row l / 4 of each tile; transposed: rows 2 (l % 4), + 1 of column l / 4
ON_DEVICE void load_tiles(unsigned (&x)[4], unsigned a) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(a) : "memory");
}
ON_DEVICE void load_tiles_transposed(unsigned (&x)[4], unsigned a) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(a) : "memory");
}
// stmatrix: the way back
ON_DEVICE void store_tiles(unsigned a, unsigned x, unsigned y, unsigned z, unsigned w) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};"
        :: "r"(a), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
ON_DEVICE void store_tiles_transposed(unsigned a, unsigned x, unsigned y, unsigned z, unsigned w) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};"
        :: "r"(a), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
// mma.sync: c [16, 8] += a [16, 16] b [16, 8], factors bf16, sums fp32. With g = l / 4, t = l % 4 a lane holds a at
// (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), two columns each; b at rows 2t and 2t + 8 of column g, two rows each;
// c at (g, 2t), (g + 8, 2t), two columns each
ON_DEVICE void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// the same without an old c
ON_DEVICE void multiply_first(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}
// in one lane of a warp, whichever; the compiler knows that it is one
ON_DEVICE bool elected() {
    unsigned mine;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(mine) :: "memory");
    return mine;
}
ON_DEVICE bool any_lane(bool mine) { return __any_sync(~0u, mine); }

// ---- barriers ----
// bar.sync: the threads that call it with this number
ON_DEVICE void barrier(int number, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(threads) : "memory"); }
// who does not wait there
ON_DEVICE void arrive_at_barrier(int number, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(number), "r"(threads) : "memory"); }
// bar.red: the same as barrier, and whether any of them says yes
ON_DEVICE bool barrier_any(int number, int threads, bool mine) {
    unsigned any;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %3, 0;\nbar.red.or.pred q, %1, %2, p;\nselp.b32 %0, 1, 0, q;\n}"
        : "=r"(any) : "r"(number), "r"(threads), "r"((unsigned)mine) : "memory");
    return any;
}
// mbarrier: a phase ends when `count` arrivals and all announced bytes are in; waiters name the phase by its parity
ON_DEVICE void mbarrier_init(unsigned b, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(b), "r"(count) : "memory");
}
ON_DEVICE void mbarriers_are_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
ON_DEVICE void arrive(unsigned b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(b) : "memory"); }
ON_DEVICE void arrive_and_expect(unsigned b, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(b), "r"(bytes) : "memory");
}
ON_DEVICE void wait(unsigned b, unsigned parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
            : "=r"(done) : "r"(b), "r"(parity) : "memory");
    } while (!done);
}
// whether that phase has ended, without waiting
ON_DEVICE bool has_ended(unsigned b, unsigned parity) {
    unsigned done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
        : "=r"(done) : "r"(b), "r"(parity) : "memory");
    return done;
}
// one instruction asks for all lanes of a warp, and gets one answer
ON_DEVICE bool same_in_all_lanes(bool answer) { return answer; }
// what this thread wrote to shared memory becomes visible to the tensor cores and the copy engine
ON_DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- the copy engine: a box of [1 batch][1 head][slices][16 tokens][128 bytes of channels] of a tensor ----
struct alignas(64) TensorMap { char bytes[128]; };
ON_DEVICE void load_box(unsigned to, const TensorMap* map, int token, int slice, int head, int batch, unsigned b) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4,%5,%6}], [%7];"
        :: "r"(to), "l"(map), "r"(0), "r"(token), "r"(slice), "r"(head), "r"(batch), "r"(b) : "memory");
}
ON_DEVICE void store_box(const TensorMap* map, int token, int slice, int head, int batch, unsigned from) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1,%2,%3,%4,%5}], [%6];\n"
        "cp.async.bulk.commit_group;"
        :: "l"(map), "r"(0), "r"(token), "r"(slice), "r"(head), "r"(batch), "r"(from) : "memory");
}
// until the copy engine has read the tiles of all but the newest `left` stores of this thread
template <int left> ON_DEVICE void wait_for_stores() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(left) : "memory");
}

// ---- a cluster of two thread blocks ----
ON_DEVICE int cluster_rank() { unsigned r; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
ON_DEVICE unsigned in_block(unsigned a, int rank) {
    unsigned x;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(rank));
    return x;
}
// no .cluster scope: that costs a fence of the whole GPU, and nothing travels with this arrival but "I have read"
ON_DEVICE void arrive_there(unsigned b) { asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(b) : "memory"); }
ON_DEVICE void arrive_and_expect_there(unsigned b, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" :: "r"(b), "r"(bytes) : "memory");
}
ON_DEVICE void copy_there(unsigned to, unsigned from, unsigned bytes, unsigned b) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(to), "r"(from), "r"(bytes), "r"(b) : "memory");
}
// two floats to a thread block of the cluster; 8 of the bytes that its mbarrier waits for
ON_DEVICE void write_there(unsigned to, float x, float y, unsigned b) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];"
        :: "r"(to), "f"(x), "f"(y), "r"(b) : "memory");
}
ON_DEVICE void cluster_barrier() { asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); }

// ---- wgmma: d [64, N] (+)= a [64, 16] b [16, N], a from registers, b from shared memory, by a warpgroup ----
ON_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ON_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int left> ON_DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(left) : "memory"); }
// holds registers to this point of the program: no arithmetic on them moves across
template <int N> ON_DEVICE void pin(float (&x)[N]) {
    #pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]) :: "memory");
}

// where b lies. Rows of 128 bytes are swizzled: 16-byte unit u of row r at u ^ (r % 8), tiles on lines of 1024 bytes.
//   keys_rows    b[k][n] at row n, channel k: stride between groups of 8 rows; the next 16 channels are 32 bytes on
//   tokens_rows  b[k][n] at row k, channel n: stride to the next 64 n, stride between groups of 8 rows
//   cores        b[k][n] in tiles of 8 n x 8 k, 128 bytes each, not swizzled: stride to the next 8 k, to the next 8 n
struct Description {
    unsigned low, high;
    __device__ Description at(unsigned bytes) const { return {low + bytes / 16, high}; }    // further on
};
// an address as descriptions count: in 16 bytes, without the thread block's number in its cluster, which stands from bit 24 on
ON_DEVICE unsigned in_units(unsigned a) { return (a & 0x3ffff) >> 4; }
ON_DEVICE Description describe(unsigned units, unsigned offset, unsigned stride1, unsigned stride2, unsigned swizzled) {
    return {units + (offset >> 4 | (stride1 >> 4) << 16), stride2 >> 4 | swizzled << 30};
}
#define LIST4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LIST16(d, i) LIST4(d, i), LIST4(d, i + 4), LIST4(d, i + 8), LIST4(d, i + 12)
#define LIST32(d) LIST16(d, 0), LIST16(d, 16)
#define FACTORS(a, b, keep) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high), "r"(keep)
#define NAMES16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES32 NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES64 NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
    ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
// d [64, 32]; b by keys_rows or cores; keep = 0: without the old d
ON_DEVICE void wgmma_keys(float (&d)[16], const unsigned (&a)[4], Description b, int keep) {
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nmov.b64 b, {%20,%21};\nsetp.ne.b32 p, %22, 0;\nwgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{" NAMES16 "}, {%16,%17,%18,%19}, b, p, 1, 1, 0;\n}" : LIST16(d, 0) : FACTORS(a, b, keep));
}
// d [64, 64] or [64, 128] += a b; b by tokens_rows
ON_DEVICE void wgmma_tokens(float (&d)[32], const unsigned (&a)[4], Description b) {
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nmov.b64 b, {%36,%37};\nsetp.ne.b32 p, %38, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{" NAMES32 "}, {%32,%33,%34,%35}, b, p, 1, 1, 1;\n}" : LIST32(d) : FACTORS(a, b, 1));
}
ON_DEVICE void wgmma_tokens(float (&d)[64], const unsigned (&a)[4], Description b) {
    asm volatile("{\n.reg .pred p;\n.reg .b64 b;\nmov.b64 b, {%68,%69};\nsetp.ne.b32 p, %70, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{" NAMES64 "}, {%64,%65,%66,%67}, b, p, 1, 1, 1;\n}" : LIST32(d), LIST16(d, 32), LIST16(d, 48) : FACTORS(a, b, 1));
}
// setmaxnreg: registers pass from the warpgroups that need few to those that need many
template <int registers> ON_DEVICE void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(registers));
}
template <int registers> ON_DEVICE void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(registers));
}
