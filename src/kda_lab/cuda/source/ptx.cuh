// The four PTX instructions of this library, one function each. on_cpu/ptx.cuh says the same in plain C++.
#pragma once

// cvt.rna.tf32.f32: x with its mantissa rounded to tf32's 10 bits, ties away from zero
__device__ inline unsigned tf32(float x) {
    unsigned y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

// mma.sync: the warp adds a [16, 8] times b [8, 8] to c [16, 8]; factors tf32, sum fp32. With
// g = lane / 4, t = lane % 4 a lane holds a at rows g, g+8 of column t, then of column t+4; b at
// rows t, t+4 of column g; c at columns 2t, 2t+1 of row g, then of row g+8. Volatile: the compiler
// must not move it to where only some lanes go
__device__ inline void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// cp.async: 16 bytes from global to shared memory without passing through registers; zeros if
// they are not there
__device__ inline void copy_async(float* shared, const float* global, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global), "r"(there ? 16 : 0) : "memory");
}

// cp.async.wait_all: the copies of this thread have landed; a barrier afterwards says so for the
// whole thread block
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
