// A kernel for machine.py about code: loops of SIZE independent multiplications, COPIES of them, each of 16 SIZE bytes
#include <machine.cuh>

template <int copy> ON_DEVICE void choose(int mine, float (&x)[16], float y, int rounds) {
    if (mine == copy) {
        #pragma unroll 1
        for (int r = 0; r < rounds; ++r) multiplies<SIZE>(x, y);
    }
    if constexpr (copy + 1 < COPIES) choose<copy + 1>(mine, x, y, rounds);
}
// twelve warps, three a scheduler; a: rounds of a loop
extern "C" __global__ void __launch_bounds__(384) machine_code(const Args args) {
    float x[16];
    for (int i = 0; i < 16; ++i) x[i] = threadIdx.x + i;
    // warps of a scheduler start apart: in step they would fetch together
    for (int i = 0; i < warp() * 37; ++i) asm volatile("fma.rn.f32 %0, %0, %1, %1;" : "+f"(x[0]) : "f"(0.5f));
    const int start = now();
    choose<0>(warp() * COPIES / 12, x, 0.5f, args.a);
    note(args, 0, now() - start);
    float sum = 0;
    for (int i = 0; i < 16; ++i) sum += x[i];
    need(__float_as_uint(sum), args.out);
}
