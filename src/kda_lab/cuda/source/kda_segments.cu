// The initial states of the segments of a long sequence, in one kernel: a scan over the segments' increments and transitions,
// for each head.
//
//   S_1 = initial state,  S_2 = increment_1,  S_{i+1} = increment_i + S_i transition_i
//
// The first increment starts from the initial state, so the first segment needs no transition; the last one needs neither.
//
// Rows of S never interact: a thread block owns ROWS rows of a head's state and takes them through all segments. A thread
// owns 4 channels of the result, an eighth of each sum, and all these rows. So an entry of a transition is wanted by one thread
// of a block: it goes from memory to a register, not through shared memory. Transitions wait for nothing, so while a thread
// multiplies, those of the next segment take the places of what it has used. Factors and sums are fp32, in one fixed order.
//
// A segment with K = V = 128 and 8 rows, in cycles of a multiprocessor: 1,024 of FFMA; beside them 2,048 of its paths to
// shared memory and L1, half of them for S, a quarter for partial sums, a quarter for the transition; two barriers. 8 heads are
// 128 thread blocks, which read 8 MB from the L2, at 5.5 TB/s 1.5 us: about as long.
//
// Constants that the compiler is given:
//   KEY, VALUE      dims of keys and values, multiples of 32; KEY <= VALUE
//   ROWS            of a thread block: a multiple of 8 that divides VALUE
//   *_BYTES         sizes that the launch counts on
constexpr int LANES = KEY / 4;               // threads that share a row, 4 channels each
constexpr int PARTS = 8;                     // of a sum over channels
constexpr int SHARE = KEY / PARTS;           // channels of a part
constexpr int THREADS = PARTS * LANES;
constexpr int OWN = ROWS / PARTS;            // rows that a thread adds up

struct Args {
    const float* ends;              // [2 segments - 3, heads, VALUE, KEY]: increments, then transitions in the first KEY rows
    const float* initial;           // [heads, VALUE, KEY]; null: 0
    float* entries;                 // [segments, heads, VALUE, KEY]
    long long segments, heads;      // segments >= 3
};
static_assert(sizeof(Args) == ARGS_BYTES, "segments.py describes another argument block");

struct Shared {
    float S[ROWS][KEY];               // at the entry of a segment
    float sums[PARTS][ROWS][KEY];     // partial sums of S transition
};
static_assert(sizeof(Shared) == SHARED_BYTES, "segments.py asks for another amount of shared memory");

__device__ const float4& four(const float* x) { return *reinterpret_cast<const float4*>(x); }
__device__ float4& four(float* x) { return *reinterpret_cast<float4*>(x); }
__device__ float4 operator+(float4 x, float4 y) { return {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w}; }
__device__ float4 add(float4 sum, float x, float4 y) {
    return {sum.x + x * y.x, sum.y + x * y.y, sum.z + x * y.z, sum.w + x * y.w};
}

// SHARE rows of a transition, 4 channels of each
__device__ void load(float4 (&T)[SHARE], const float* from) {
    #pragma unroll
    for (int k = 0; k < SHARE; ++k) T[k] = four(from + k * KEY);
}

// One part of S T for all rows. S: at the first channel of the part. Where T has been used the next one takes its place
__device__ void multiply(float4 (&sum)[ROWS], const float* S, float4 (&T)[SHARE], const float* next) {
    #pragma unroll
    for (int r = 0; r < ROWS; ++r) sum[r] = {};
    #pragma unroll
    for (int k = 0; k < SHARE; k += 4) {
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float4 x = four(S + r * KEY + k);
            sum[r] = add(add(add(add(sum[r], x.x, T[k]), x.y, T[k + 1]), x.z, T[k + 2]), x.w, T[k + 3]);
        }
        #pragma unroll
        for (int j = k; j < k + 4; ++j) T[j] = four(next + j * KEY);
        __syncwarp();    // the compiler would leave all loads to the end
    }
}

// visit(n, at) for the rows that a thread adds up: `at` is how far the n-th lies behind the first
template <class F> __device__ void own_rows(F visit) {
    #pragma unroll
    for (int n = 0; n < OWN; ++n) visit(n, n * PARTS * KEY);
}

// One thread block: ROWS rows of a head
extern "C" __global__ void __launch_bounds__(THREADS) kda_segments(const __grid_constant__ Args a) {
    extern __shared__ __align__(16) unsigned char memory[];
    Shared& s = *reinterpret_cast<Shared*>(memory);
    constexpr int blocks = VALUE / ROWS;    // of a head
    const int part = threadIdx.x / LANES, d = threadIdx.x % LANES * 4;
    const long long state = a.heads * VALUE * KEY, head = blockIdx.x / blocks * (VALUE * KEY);
    // of the rows that this thread adds up, the first: the others are PARTS rows apart
    const long long own = head + (blockIdx.x % blocks * ROWS + part) * KEY + d;
    const float *increment = a.ends + own, *transition = a.ends + (a.segments - 1) * state + head + part * SHARE * KEY + d;
    float* entry = a.entries + own;
    float4 T[SHARE];
    load(T, transition);
    own_rows([&](int n, int at) { four(entry + at) = a.initial ? four(a.initial + own + at) : float4{}; });
    entry += state;
    own_rows([&](int n, int at) { four(entry + at) = four(&s.S[part][d] + at) = four(increment + at); });

    #pragma unroll 1
    for (long long i = 3; i <= a.segments; ++i) {
        // [affine-fold] S <- S T + H: one segment after the other, T its transition
        // and H its increment
        float4 H[OWN], sum[ROWS];
        increment += state, entry += state;
        own_rows([&](int n, int at) { H[n] = four(increment + at); });
        // the last transition comes once more, now from the L1: no load stands behind
        // a branch
        if (i < a.segments) transition += state;
        __syncthreads();    // S is complete, and the last sums have been read
        multiply(sum, &s.S[0][part * SHARE], T, transition);
        #pragma unroll
        for (int r = 0; r < ROWS; ++r) four(&s.sums[part][r][d]) = sum[r];
        __syncthreads();    // the sums are complete, and S has been read
        own_rows([&](int n, int at) {
            #pragma unroll
            for (int p = 0; p < PARTS; ++p)
                H[n] = H[n] + four(&s.sums[p][part][d] + at);
            four(entry + at) = four(&s.S[part][d] + at) = H[n];
        });
        // [/affine-fold]
    }
}
