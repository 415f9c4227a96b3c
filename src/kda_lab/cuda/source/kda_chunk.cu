// The chunk form of Kimi Delta Attention and of its relatives, forward, in three kernels; C = 64 tokens a chunk:
//
//   kda_prepare   every chunk at once    G, A, M, R, U, W, Q_in, K_g, e^{G_C} to the workspace
//   kda_state     chunk after chunk      E = U - W S^T, then S <- S Diag(e^{G_C}) + E^T K_g
//   kda_output    every chunk at once    O = Q_in S^T + M E, S the state at the chunk's entry
//
// Constants that the compiler is given:
//   KEY, VALUE             dims of keys and values, 1 to 128
//   IN, GATE_IN, BETA_IN   types of q k v o, of g, of beta: float, __half or __nv_bfloat16
//   GATE                   0 none (alpha = 1), 1 given, 2 bounded, 3 softplus
//   L2NORM, BETA_SIGMOID   0 or 1
//   ERASE                  1 delta rule, 0 linear attention (A = 0, W = 0)
//   EXACT                  tensor core products in 0 tf32, 1 about fp32
//   *_BYTES                sizes that the launch counts on
// Logarithms are natural in the arguments and base 2 inside; exp2 is one instruction with ftz, which compile.py sets.
// Left to the caller: g <= 0, for a positive gate makes exponents positive; at least one sequence; finite k and v, for
// zeros above the diagonal are multiplied, too: an inf or nan reaches earlier tokens of its block of 16, as nan.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "tile.cuh"

constexpr int C = 64;                             // four blocks: the inverse, C^2/3 a token, stays below the K V terms
constexpr int BLOCKS = C / SUB;
constexpr int K = (KEY + SUB - 1) / SUB * SUB;    // padded with zero channels, which no sum notices
constexpr int V = (VALUE + SUB - 1) / SUB * SUB;
constexpr int SLICE = 16;                         // rows of S in one block of kda_state; rows of S never interact
constexpr int WARPS = 8, THREADS = 32 * WARPS;    // kda_prepare and kda_output
constexpr int STATE_WARPS = BLOCKS, STATE_THREADS = 32 * STATE_WARPS;    // a warp for each 16 tokens of E
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float FLOOR = -160;                     // 2^-160 is 0 in fp32 (least: 2^-149, with ftz 2^-126); never inf - inf

struct Rows { const void* at; long long batch, token, head, channel; };    // an argument and its strides, in elements

struct Args {
    Rows q, k;                       // [B, T, H, KEY]
    Rows v, o;                       // [B, T, heads, VALUE]
    Rows g;                          // [B, T, heads, KEY]; a gate per head has channel stride 0
    Rows beta;                       // [B, T, heads]; null: 1, and the launch then never sets BETA_SIGMOID
    Rows A_log, dt_bias;             // fp32 [heads], [heads, KEY]; dt_bias null: 0
    const float* initial_state;      // [sequences, heads, VALUE, KEY]; null: 0
    float* final_state;              // likewise; null: not wanted
    const long long* cu_seqlens;     // [sequences + 1]; null: B sequences of T tokens
    float *U, *W, *Q_in, *K_g, *M;   // [B T, heads, V or K or C]; U becomes E
    float *decay, *S;                // [slots, heads, K], [slots, heads, V, K]: a chunk's e^{G_C} and entry state
    long long sequences, tokens, heads, group;    // sequences >= 1; tokens = T; head h reads the keys of head h / group
    float scale, lower_bound;
};
static_assert(sizeof(Args) == ARGS_BYTES, "chunk.py describes another argument block");

__device__ long long offset(const Rows& x, long long b, long long t, long long h, int d) {
    return b * x.batch + t * x.token + h * x.head + d * x.channel;
}
template <class X> __device__ float load(const Rows& x, long long b, long long t, long long h, int d) {
    return float(static_cast<const X*>(x.at)[offset(x, b, t, h, d)]);
}
__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// where a sequence lies: its first token in the arguments (batch, token) and in the workspace (row), its first slot
struct Sequence { long long batch, token, row, length, slot; };

__device__ Sequence sequence(const Args& a, long long n) {
    if (!a.cu_seqlens) return {n, 0, n * a.tokens, a.tokens, n * ((a.tokens + C - 1) / C)};
    const long long first = a.cu_seqlens[n], end = a.cu_seqlens[n + 1];
    // ceil(length / C) <= end / C - first / C + 1: slots that start at first / C + n never collide, no lengths to sum up
    return {0, first, first, end - first, first / C + n};
}

struct Chunk { long long batch, token, row, slot, head; int rows; };    // rows: the tokens it really has, at most C

__device__ Chunk chunk_at(const Sequence& s, long long slot, long long head) {
    const long long first = (slot - s.slot) * C, left = s.length - first;
    return {s.batch, s.token + first, s.row + first, slot, head, int(left < C ? left : C)};
}

// the chunk that this thread block of kda_prepare or kda_output owns; rows <= 0 where a slot is empty
__device__ Chunk own_chunk(const Args& a) {
    const long long slot = blockIdx.x / a.heads;
    long long low = 0, high = a.sequences - 1;    // the last sequence that starts at or before this slot
    while (low < high) {
        const long long middle = (low + high + 1) / 2;
        if (sequence(a, middle).slot <= slot) low = middle; else high = middle - 1;
    }
    return chunk_at(sequence(a, low), slot, blockIdx.x % a.heads);
}

// row i of the chunk in a workspace array [B T, heads, width]
__device__ float* row(float* x, const Args& a, const Chunk& c, int i, int width) {
    return x + ((c.row + i) * a.heads + c.head) * width;
}

struct PrepareShared {
    float P[C][K + 4];                      // [C, K] log2 decay summed from the start of the block of 16
    float A[C][C + 4], R[C][C + 4];         // [C, C]; 4 words of padding put the 8 rows of a fragment into 8 banks
    IN q[C][K + 16 / sizeof(IN)];           // [C, K] as given: norm and scale are a factor a row
    IN k[C][K + 16 / sizeof(IN)];
    float q_factor[C], k_factor[C], beta[C];
};
static_assert(sizeof(PrepareShared) == PREPARE_BYTES, "chunk.py asks for another amount of shared memory");

// G_i - G_j in base 2, -1 <= j <= i: the decay of tokens j+1 .. i. A difference of
// sums in a block carries the rounding of 15 earlier tokens at most; in a chunk, of 63
__device__ float log2_decay(const float (&P)[C][K + 4], int j, int i, int d) {
    const int a = i / SUB, b = (j + SUB) / SUB - 1;    // j = -1: before the first
    if (a == b) return P[i][d] - P[j][d];
    float sum = P[i][d];
    for (int c = b + 1; c < a; ++c) sum += P[SUB * c + SUB - 1][d];
    return b < 0 ? sum : sum + (P[SUB * b + SUB - 1][d] - P[j][d]);
}

// 16 columns of R X by one warp: it holds them as right factors, read once, and passes the
// block rows of R over them. R is lower triangular: nothing right of the diagonal block
template <class F, class G> __device__ void apply_inverse(const float (&R)[C][C + 4], F X, G store) {
    Right x[C / STEP];
    #pragma unroll
    for (int s = 0; s < C / STEP; ++s) x[s] = right([&](int j, int n) { return X(STEP * s + j, n); });
    #pragma unroll
    for (int a = 0; a < BLOCKS; ++a) {
        Tile y = {};
        #pragma unroll
        for (int s = 0; s < SUB / STEP * (a + 1); ++s)
            multiply<EXACT>(y, left([&](int i, int j) { return R[SUB * a + i][STEP * s + j]; }), x[s]);
        each(y, [&](int i, int n, float y) { store(SUB * a + i, n, y); });
    }
}

// one thread block: one chunk of one head; two of them fit on a multiprocessor
extern "C" __global__ void __launch_bounds__(THREADS, 2) kda_prepare(const __grid_constant__ Args a) {
    extern __shared__ __align__(16) unsigned char memory[];
    PrepareShared& s = *reinterpret_cast<PrepareShared*>(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Chunk c = own_chunk(a);
    if (c.rows <= 0) return;
    const long long key_head = c.head / a.group;

    // [decay-prefix] P[i] = sum of log2 alpha from the start of i's block of 16 to i.
    // A thread owns a channel of a block; what does not exist does not decay
    for (int own = threadIdx.x; own < BLOCKS * K; own += THREADS) {
        const int first = own / K * SUB, d = own % K;
        const bool biased = GATE >= 2 && a.dt_bias.at && d < KEY;
        const float bias = biased ? load<float>(a.dt_bias, 0, 0, c.head, d) : 0;
        const float A_log = GATE >= 2 ? load<float>(a.A_log, 0, 0, c.head, 0) : 0;
        const float rate = expf(fminf(A_log, 80));    // saturates, so that inf * 0 cannot occur
        float g[SUB];
        #pragma unroll
        for (int i = 0; i < SUB; ++i) {    // 16 loads under way before a first use
            const bool there = GATE && first + i < c.rows && d < KEY;
            g[i] = there ? load<GATE_IN>(a.g, c.batch, c.token + first + i, c.head, d) : 0;
        }
        float sum = 0;
        #pragma unroll
        for (int i = 0; i < SUB; ++i) {
            // [gate-bounded] g = lower_bound sigmoid(exp(A_log) (x + dt_bias))
            if (GATE == 2) g[i] = a.lower_bound * sigmoid(rate * (g[i] + bias));
            // [/gate-bounded]
            // [gate-softplus] g = -exp(A_log) softplus(y), y = x + dt_bias; far below zero softplus(y) = e^y
            const float y = g[i] + bias, soft = fmaxf(y, 0) + log1pf(expf(-fabsf(y)));
            if (GATE == 3) g[i] = y < -40 ? -expf(fminf(A_log + y, 80)) : -rate * soft;
            // [/gate-softplus]
            const bool there = first + i < c.rows && d < KEY;
            const float x = there ? g[i] * LOG2_E : 0;
            sum += x < FLOOR ? FLOOR : x;    // not fmaxf: a nan stays a nan
            s.P[first + i][d] = sum;
        }
    }
    // [/decay-prefix]
    // keys and queries as they are, zero where there are none. Neighbouring threads own neighbouring channels
    #pragma unroll 8
    for (int own = threadIdx.x; own < C * K; own += THREADS) {
        const int i = own / K, d = own % K;
        const bool there = i < c.rows && d < KEY;
        s.k[i][d] = there ? load<IN>(a.k, c.batch, c.token + i, key_head, d) : 0;
        s.q[i][d] = there ? load<IN>(a.q, c.batch, c.token + i, key_head, d) : 0;
    }
    if (threadIdx.x < C) {
        const int i = threadIdx.x;
        float beta = a.beta.at && i < c.rows ? load<BETA_IN>(a.beta, c.batch, c.token + i, c.head, 0) : 1;
        if (BETA_SIGMOID) beta = sigmoid(beta);
        s.beta[i] = i < c.rows ? beta : 0;
    }
    __syncthreads();    // k and q are complete: a norm reads a whole row

    // [l2-norm] k / sqrt(|k|^2 + 1e-6), the same for q: kept as one factor a row. A warp owns every eighth row
    for (int i = warp; i < C; i += WARPS) {
        float kk = 0, qq = 0;
        for (int d = lane; d < K; d += 32) {
            kk += float(s.k[i][d]) * float(s.k[i][d]);
            qq += float(s.q[i][d]) * float(s.q[i][d]);
        }
        kk = warp_sum(kk), qq = warp_sum(qq);
        if (lane == 0) {
            s.k_factor[i] = L2NORM ? rsqrtf(kk + 1e-6f) : 1;
            s.q_factor[i] = L2NORM ? rsqrtf(qq + 1e-6f) * a.scale : a.scale;
        }
    }
    // [/l2-norm]
    __syncthreads();    // P, beta and the factors are complete
    auto k = [&](int i, int d) { return s.k_factor[i] * float(s.k[i][d]); };
    auto q = [&](int i, int d) { return s.q_factor[i] * float(s.q[i][d]); };
    auto decay = [&](int j, int i, int d) { return exp2f(log2_decay(s.P, j, i, d)); };    // exp(G_i - G_j)

    // [chunk-scores] A[i][j] = beta_i * sum_d k_i k_j exp(G_i - G_j), j < i
    // [chunk-readout-scores] M[i][j] = sum_d q_i k_j exp(G_i - G_j), j <= i
    // blocks below the diagonal, a warp a block: token n, the first of the rows, splits
    // the exponent into two, both <= 0. A and M share the right factor
    for (int block = 1, own = 0; block < BLOCKS; ++block)
        for (int b = 0; b < block; ++b, ++own) {
            if (own % WARPS != warp) continue;
            const int n = SUB * block, m = SUB * b;
            Tile kk = {}, qk = {};
            for (int d0 = 0; d0 < K; d0 += STEP) {
                const Right y = right([&](int d, int j) {
                    return k(m + j, d0 + d) * decay(m + j, n, d0 + d); });
                const Left ki = left([&](int i, int d) {
                    return k(n + i, d0 + d) * decay(n, n + i, d0 + d); });
                const Left qi = left([&](int i, int d) {
                    return q(n + i, d0 + d) * decay(n, n + i, d0 + d); });
                if (ERASE) multiply<EXACT>(kk, ki, y);
                multiply<EXACT>(qk, qi, y);
            }
            each(kk, [&](int i, int j, float x) { s.A[n + i][m + j] = s.beta[n + i] * x; });
            each(qk, [&](int i, int j, float x) {
                if (n + i < c.rows) row(a.M, a, c, n + i, C)[m + j] = x; });
        }
    // diagonal blocks: no one reference is safe for every gate, so each pair j <= i has
    // its own exponent, in fp32; pairs j > i are never formed. A warp owns rows w and
    // 15 - w of each block, 17 pairs for every w; the lanes share the channels
    static_assert(2 * WARPS == SUB, "two rows a warp");
    for (int own = 0; own < 2 * BLOCKS; ++own) {
        const int n = own / 2 * SUB, r = own % 2 ? SUB - 1 - warp : warp, i = n + r;
        float A = 0, M = 0;    // lane j keeps column j
        for (int j = 0; j <= r; ++j) {
            float kk = 0, qk = 0;
            for (int d = lane; d < K; d += 32) {
                const float y = k(n + j, d) * decay(n + j, i, d);
                kk += k(i, d) * y, qk += q(i, d) * y;
            }
            kk = warp_sum(kk), qk = warp_sum(qk);
            if (lane == j) A = ERASE && j < r ? s.beta[i] * kk : 0, M = qk;
        }
        if (lane < SUB) {
            s.A[i][n + lane] = A;
            if (i < c.rows) row(a.M, a, c, i, C)[n + lane] = M;
        }
    }
    // [/chunk-readout-scores]
    // [/chunk-scores]
    __syncthreads();    // A is complete

    // [chunk-inverse] R = (I + A)^-1 on the diagonal blocks, a thread a column:
    // x_i = 1[i = column] - sum_{j<i} A_ij x_j
    if (threadIdx.x < C) {
        const int n = threadIdx.x / SUB * SUB, column = threadIdx.x % SUB;
        float x[SUB];
        #pragma unroll
        for (int i = 0; i < SUB; ++i) {
            x[i] = i == column;
            #pragma unroll
            for (int j = 0; j < i; ++j) x[i] -= s.A[n + i][n + j] * x[j];
            s.R[n + i][n + column] = x[i];
        }
    }
    // [/chunk-inverse]
    // [block-inverse] R_ab = -R_aa sum_{b<=c<a} A_ac R_cb, distance a - b = 1, 2, 3.
    // A warp owns a block. Split products, whatever the others are: where keys nearly
    // repeat these sums cancel, which shows near beta = 2 or among split products
    for (int distance = 1; distance < BLOCKS; ++distance) {
        __syncthreads();    // the blocks nearer to the diagonal are complete
        if (warp >= BLOCKS - distance) continue;
        const int m = SUB * warp, n = m + SUB * distance;    // first of b, of a
        Tile sum = {}, product = {};
        for (int j0 = m; j0 < n; j0 += STEP)
            multiply<true>(sum, left([&](int i, int j) { return s.A[n + i][j0 + j]; }),
                           right([&](int j, int l) { return s.R[j0 + j][m + l]; }));
        each(sum, [&](int i, int l, float x) { s.R[n + i][m + l] = x; });
        __syncwarp();    // the sum, in R_ab's place, is complete: a right factor now
        for (int j0 = 0; j0 < SUB; j0 += STEP)
            multiply<true>(product, left([&](int i, int j) { return -s.R[n + i][n + j0 + j]; }),
                           right([&](int j, int l) { return s.R[n + j0 + j][m + l]; }));
        __syncwarp();       // every lane has read the sum that R_ab now replaces
        each(product, [&](int i, int l, float x) { s.R[n + i][m + l] = x; });
    }
    // [/block-inverse]
    __syncthreads();    // R is complete

    // [chunk-u] U = R B V. A warp owns 16 columns
    for (int n0 = SUB * warp; n0 < V; n0 += SUB * WARPS)
        apply_inverse(s.R,
            [&](int j, int n) {
                const bool there = j < c.rows && n0 + n < VALUE;
                return there ?
                    s.beta[j] * load<IN>(a.v, c.batch, c.token + j, c.head, n0 + n) : 0;
            },
            [&](int i, int n, float x) { if (i < c.rows) row(a.U, a, c, i, V)[n0 + n] = x; });
    // [/chunk-u]
    // [chunk-w] W = R B K_in, K_in[j] = k_j exp(G_j). A warp owns 16 columns
    for (int n0 = SUB * warp; ERASE && n0 < K; n0 += SUB * WARPS)
        apply_inverse(s.R,
            [&](int j, int d) { return s.beta[j] * k(j, n0 + d) * decay(-1, j, n0 + d); },
            [&](int i, int d, float x) { if (i < c.rows) row(a.W, a, c, i, K)[n0 + d] = x; });
    // [/chunk-w]
    // what the later kernels read of q, k and G. Neighbouring threads own neighbouring channels
    for (int own = threadIdx.x; own < c.rows * K; own += THREADS) {
        const int i = own / K, d = own % K;
        // [chunk-inputs] Q_in[i] = q_i exp(G_i)
        row(a.Q_in, a, c, i, K)[d] = q(i, d) * decay(-1, i, d);
        // [/chunk-inputs]
        // [chunk-kg] K_g[i] = k_i exp(G_C - G_i)
        row(a.K_g, a, c, i, K)[d] = k(i, d) * decay(i, C - 1, d);
        // [/chunk-kg]
    }
    for (int d = threadIdx.x; d < K; d += THREADS)
        a.decay[(c.slot * a.heads + c.head) * K + d] = decay(-1, C - 1, d);
}

struct StateShared {
    float W[C][K + 4];         // [C, K] read as left factor: 8 rows, 8 banks
    float K_g[C][K + 8];       // [C, K] read as right factor: 4 rows of 8, all 32 banks
    float S[SLICE][K + 4];     // [SLICE, K]
    float E[C][SLICE + 8];     // [C, SLICE]
    float decay[K];
};
static_assert(sizeof(StateShared) == STATE_BYTES, "chunk.py asks for another amount of shared memory");

// starts the copy of a chunk's rows [C, WIDTH] from the workspace; rows that do not exist become zero
template <int WIDTH, int LINE> __device__ void fetch(float (&to)[C][LINE], float* from, const Args& a, const Chunk& c,
                                                     int threads) {
    for (int own = 4 * threadIdx.x; own < C * WIDTH; own += 4 * threads) {
        const int i = own / WIDTH, d = own % WIDTH;
        const bool there = i < c.rows;
        copy_async(&to[i][d], row(from, a, c, there ? i : 0, WIDTH) + d, there);
    }
}

// one thread block: 16 rows of the state of one head of one sequence, from its first token to its last
extern "C" __global__ void __launch_bounds__(STATE_THREADS, 2) kda_state(const __grid_constant__ Args a) {
    extern __shared__ __align__(16) unsigned char memory[];
    StateShared& s = *reinterpret_cast<StateShared*>(memory);
    const int warp = threadIdx.x / 32, v0 = blockIdx.x % (V / SLICE) * SLICE;
    const long long head = blockIdx.x / (V / SLICE) % a.heads, n = blockIdx.x / (V / SLICE) / a.heads;
    const Sequence tokens = sequence(a, n);
    const long long state = (n * a.heads + head) * VALUE * KEY;    // in initial_state and final_state

    for (int own = threadIdx.x; own < SLICE * K; own += STATE_THREADS) {
        const int v = own / K, d = own % K;
        const bool there = a.initial_state && v0 + v < VALUE && d < KEY;
        s.S[v][d] = there ? a.initial_state[state + (v0 + v) * KEY + d] : 0;
    }
    if (ERASE && tokens.length > 0) fetch<K>(s.W, a.W, a, chunk_at(tokens, tokens.slot, head), STATE_THREADS);
    wait_for_copies();
    __syncthreads();    // S and the first W are there for every thread

    for (long long t = 0; t * C < tokens.length; ++t) {
        const Chunk c = chunk_at(tokens, tokens.slot + t, head);
        // K_g and e^{G_C} travel while E is computed
        fetch<K>(s.K_g, a.K_g, a, c, STATE_THREADS);
        for (int d = 4 * threadIdx.x; d < K; d += 4 * STATE_THREADS)
            copy_async(&s.decay[d], a.decay + (c.slot * a.heads + head) * K + d, true);
        // the state at the chunk's entry, for kda_output
        float* entry = a.S + ((c.slot * a.heads + head) * V + v0) * K;    // [SLICE, K]
        for (int own = threadIdx.x; own < SLICE * K; own += STATE_THREADS) entry[own] = s.S[own / K][own % K];

        // [chunk-residual] E = U - W S^T, S undecayed. A warp owns 16 tokens; E replaces U
        const int i0 = SUB * warp;
        Tile E;    // [16, SLICE]
        each(E, [&](int i, int v, float& x) {
            x = i0 + i < c.rows ? row(a.U, a, c, i0 + i, V)[v0 + v] : 0; });
        for (int d0 = 0; ERASE && d0 < K; d0 += STEP)
            multiply<EXACT>(E, left([&](int i, int d) { return -s.W[i0 + i][d0 + d]; }),
                               right([&](int d, int v) { return s.S[v][d0 + d]; }));
        each(E, [&](int i, int v, float x) {
            s.E[i0 + i][v] = x;
            if (i0 + i < c.rows) row(a.U, a, c, i0 + i, V)[v0 + v] = x;
        });
        // [/chunk-residual]
        wait_for_copies();
        __syncthreads();    // E, K_g and e^{G_C} are complete; nobody reads W or the old S any more
        // the next W travels while S is updated
        if (ERASE && (t + 1) * C < tokens.length)
            fetch<K>(s.W, a.W, a, chunk_at(tokens, c.slot + 1, head), STATE_THREADS);

        // [chunk-state] S <- S Diag(e^{G_C}) + E^T K_g, in fp32. A warp owns every 4th tile
        for (int d0 = SUB * warp; d0 < K; d0 += SUB * STATE_WARPS) {
            Tile S;    // [SLICE, 16]
            each(S, [&](int v, int d, float& x) { x = s.S[v][d0 + d] * s.decay[d0 + d]; });
            #pragma unroll
            for (int j0 = 0; j0 < C; j0 += STEP)
                multiply<EXACT>(S, left([&](int v, int j) { return s.E[j0 + j][v]; }),
                                right([&](int j, int d) { return s.K_g[j0 + j][d0 + d]; }));
            each(S, [&](int v, int d, float x) { s.S[v][d0 + d] = x; });
        }
        // [/chunk-state]
        wait_for_copies();
        __syncthreads();    // S and the next W are complete; nobody reads E, K_g or e^{G_C} any more
    }
    if (!a.final_state) return;
    for (int own = threadIdx.x; own < SLICE * K; own += STATE_THREADS) {
        const int v = own / K, d = own % K;
        if (v0 + v < VALUE && d < KEY) a.final_state[state + (v0 + v) * KEY + d] = s.S[v][d];
    }
}

struct OutputShared { float Q_in[C][K + 4], M[C][C + 4]; };    // [C, K], [C, C]
static_assert(sizeof(OutputShared) == OUTPUT_BYTES, "chunk.py asks for another amount of shared memory");

// one thread block: one chunk of one head
extern "C" __global__ void __launch_bounds__(THREADS, 2) kda_output(const __grid_constant__ Args a) {
    extern __shared__ __align__(16) unsigned char memory[];
    OutputShared& s = *reinterpret_cast<OutputShared*>(memory);
    const int warp = threadIdx.x / 32;
    const Chunk c = own_chunk(a);
    if (c.rows <= 0) return;
    fetch<K>(s.Q_in, a.Q_in, a, c, THREADS);
    fetch<C>(s.M, a.M, a, c, THREADS);    // blocks above the diagonal were never written and are never used
    wait_for_copies();
    __syncthreads();    // Q_in and M are there for every thread

    const float* S = a.S + (c.slot * a.heads + c.head) * V * K;    // [V, K]
    // [chunk-output] O = Q_in S^T + M E. A warp owns 16 columns of all 64 tokens: it
    // alone reads its rows of S and columns of E, once, as right factors
    for (int n0 = SUB * warp; n0 < V; n0 += SUB * WARPS) {
        Tile O[BLOCKS] = {};    // [64, 16]
        #pragma unroll 4
        for (int d0 = 0; d0 < K; d0 += STEP) {
            const Right y = right([&](int d, int n) { return S[(n0 + n) * K + d0 + d]; });
            #pragma unroll
            for (int b = 0; b < BLOCKS; ++b)
                multiply<EXACT>(O[b],
                    left([&](int i, int d) { return s.Q_in[SUB * b + i][d0 + d]; }), y);
        }
        #pragma unroll
        for (int j0 = 0; j0 < C; j0 += STEP) {
            const Right y = right([&](int j, int n) {
                return j0 + j < c.rows ? row(a.U, a, c, j0 + j, V)[n0 + n] : 0;
            });
            #pragma unroll
            for (int b = j0 / SUB; b < BLOCKS; ++b)    // to its block and later ones
                multiply<EXACT>(O[b],
                    left([&](int i, int j) { return s.M[SUB * b + i][j0 + j]; }), y);
        }
        #pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
            each(O[b], [&](int i, int n, float x) {
                const int t = SUB * b + i;
                if (t < c.rows && n0 + n < VALUE)
                    ((IN*)a.o.at)[offset(a.o, c.batch, c.token + t, c.head, n0 + n)] = IN(x);
            });
    }
    // [/chunk-output]
}
