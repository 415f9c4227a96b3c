// One decoding step of Kimi Delta Attention, and of its relatives with a delta rule, in one kernel. A request brings
// TOKENS tokens: the one that is known, and the drafts that are verified with it.
//
//   x = SiLU(convolution(window, qkv))      q, k: L2 norm      alpha = exp(g)
//   S <- S Diag(alpha),  u = beta (v - S k),  S <- S + u k^T,  o = S q      token after token
//   y = RMSNorm(o) weight sigmoid(output gate)
//
// Memory sets the time: a state of K V floats comes in once and goes out after each token, and all else is small. So a
// thread block owns a head of a request and has its whole state on the way to shared memory while it prepares the tokens.
// Then a thread takes each of its rows of S through all tokens, since rows never interact: nothing is written back but
// what the slots want, and no barrier stands between tokens.
//
// States and windows lie in pools and are changed in place. After token j the state stands in the request's slot j. The
// step begins with slot n - 1 and with row n - 1 of the window, n tokens of the last step accepted: n = 1 where nothing
// was drafted. A thread writes the elements of a state that it has read, and no others, when they are on the chip; so a
// request may overwrite the slot that it has just read. Slots of different requests differ.
//
// Constants that the compiler is given:
//   KEY, VALUE            dims of keys and values; KEY a multiple of 4
//   TOKENS                of each request
//   GROUP                 value heads that share a key head
//   WIDTH                 taps of the convolution; 1: none, q k v are taken as they are
//   THREADS, BLOCKS       threads of a block, whole warps; blocks that a multiprocessor has room for
//   IN, GATE_IN, BETA_IN, WEIGHT    types of qkv, window, output gate, y; of g; of beta; of taps and norm weight
//   GATE                  0 none (alpha = 1), 1 given, 2 bounded, 3 softplus
//   L2NORM                0 or 1
//   BETA_SIGMOID          0 beta given, 1 its sigmoid, 2 twice that
//   NORM, OUTPUT_GATE     0 or 1: y = o without norm; 0 none, 1 sigmoid, 2 SiLU, which count with NORM alone
//   *_BYTES               sizes that the launch counts on
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <prefetch.cuh>
#include <ptx.cuh>

constexpr int LANES = 8;                               // threads that share a row of S, 4 channels of every 32 each
constexpr int CHUNKS = (KEY + 31) / 32;
constexpr int K = 32 * CHUNKS, V = (VALUE + 3) / 4 * 4;    // in shared memory: padded with zero channels
constexpr int STRIDE = THREADS / LANES;                // a thread's rows of S are this far apart
constexpr int CHANNELS = 2 * K + V;                    // q, k and v of one head
constexpr int ROWS = (VALUE + STRIDE - 1) / STRIDE;    // of a thread

struct Rows { const void* at; long long request, token, head, channel; };    // an argument and its strides, in elements

struct Args {
    Rows q, k;                       // [R, T, H, KEY]
    Rows v, output_gate, y;          // [R, T, heads, VALUE]
    Rows g;                          // [R, T, heads, KEY]; a gate per head has channel stride 0
    Rows beta;                       // [R, T, heads]
    Rows dt_bias;                    // fp32 [heads, KEY]; null: 0
    const float* A_log;              // fp32 [heads]
    const WEIGHT* taps;              // [2 H KEY + heads VALUE, WIDTH], the last meets the current token
    const WEIGHT* norm_weight;       // [VALUE]
    IN* windows;                     // [slots, rows, 2 H KEY + heads VALUE], slots window_stride apart, oldest input first
    float* states;                   // [slots, heads, VALUE, KEY], slots state_stride apart
    const int* window_slots;         // [R]; null: no convolution
    const int* state_slots;          // [R, slot_columns], -1: not kept
    const int* accepted;             // [R]; null: 1
    long long window_stride, state_stride, channels, slot_columns, heads;    // channels: 2 H KEY + heads VALUE
    long long requests, ahead;       // ahead: how many blocks further look_ahead looks; 0: it does not
    float scale, lower_bound, eps;
};
static_assert(sizeof(Args) == ARGS_BYTES, "decode.py describes another argument block");

struct Shared {
    float S[VALUE][K];                     // as it comes in; each thread reads what it copied itself
    float x[TOKENS][CHANNELS];             // q, k, v; an o takes the place of its v
    float alpha[TOKENS][K];
    float gate[TOKENS][V];                 // weight times output gate
    float beta[TOKENS], q_norm[TOKENS], k_norm[TOKENS], kq[TOKENS];
    int slot[TOKENS];                      // where the states go
};
static_assert(sizeof(Shared) == SHARED_BYTES, "decode.py asks for another amount of shared memory");

template <class X> __device__ const X* place(const Rows& x, long long r, int t, int h, int d) {
    return static_cast<const X*>(x.at) + r * x.request + t * x.token + h * x.head + d * x.channel;
}
__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }
__device__ float4 operator*(float4 x, float4 y) { return {x.x * y.x, x.y * y.y, x.z * y.z, x.w * y.w}; }
__device__ float dot(float4 x, float4 y) { return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w; }

// the sum over 8 lanes that share a row, or over all 32; the same bits in each
template <int COUNT> __device__ float lane_sum(float x) {
    for (int lanes = COUNT / 2; lanes; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

__device__ constexpr int owned(int count) { return (count + THREADS - 1) / THREADS; }
// visit(n, i) for the n-th of the i < COUNT that this thread owns: the same ones wherever COUNT is the same
template <int COUNT, class F> __device__ void own(F visit) {
    #pragma unroll
    for (int n = 0; n < owned(COUNT); ++n) {
        const int i = threadIdx.x + n * THREADS;
        if (COUNT % THREADS == 0 || i < COUNT) visit(n, i);
    }
}
// the same without a branch, which a load would have to return from: a thread that owns nothing repeats the last
template <int COUNT, class F> __device__ void own_or_last(F visit) {
    #pragma unroll
    for (int n = 0; n < owned(COUNT); ++n) {
        const int i = threadIdx.x + n * THREADS;
        visit(n, COUNT % THREADS == 0 || i < COUNT ? i : COUNT - 1);
    }
}

// channel i of q, k, v of one head: its first token, the stride of tokens, and its column in a window. Where there is none
// (padding), the first of its part stands in, so that it can be loaded
struct Channel { const IN* input; long long token; int column; bool there; };

__device__ Channel channel(const Args& a, long long request, int head, int i) {
    const int part = i < K ? 0 : i < 2 * K ? 1 : 2, key_heads = a.heads / GROUP;
    const int of = part == 2 ? head : head / GROUP, size = part == 2 ? VALUE : KEY;
    const bool there = i - part * K < size;
    const int d = there ? i - part * K : 0;
    const Rows& x = part == 2 ? a.v : part ? a.k : a.q;
    return {place<IN>(x, request, 0, of, d), x.token, part * key_heads * KEY + of * size + d, there};
}

struct Request { long long number; int first; long long window, state; bool takes_part; };    // first: n - 1

// state, window: the slots that it begins with. Without one, or with nothing accepted, the request takes no part
__device__ Request request(const Args& a, long long r) {
    const int first = a.accepted ? a.accepted[r] - 1 : 0, window = a.window_slots ? a.window_slots[r] : 0;
    const int state = first < 0 ? -1 : a.state_slots[r * a.slot_columns + first];
    return {r, first, window, state, window >= 0 && state >= 0};
}

// what a head needs beside its state, as it comes in: nothing is converted, hence waited for, before all loads have started
struct Inputs {
    IN old[owned(CHANNELS)][WIDTH], x[owned(CHANNELS)][TOKENS];    // WIDTH - 1 rows of the window, new rows
    WEIGHT taps[owned(CHANNELS)][WIDTH], weight[owned(TOKENS * V)];
    GATE_IN g[owned(TOKENS * K)];
    float A_log, bias[owned(TOKENS * K)];
    IN gate[owned(TOKENS * V)];
    BETA_IN beta;
};

__device__ void load_inputs(Inputs& in, const Args& a, long long request, int head) {
    own_or_last<CHANNELS>([&](int n, int i) {
        const Channel c = channel(a, request, head, i);
        #pragma unroll
        for (int t = 0; t < TOKENS; ++t) in.x[n][t] = c.input[t * c.token];
        #pragma unroll
        for (int w = 0; WIDTH > 1 && w < WIDTH; ++w) in.taps[n][w] = a.taps[c.column * WIDTH + w];
    });
    if (GATE >= 2) in.A_log = a.A_log[head];
    if (GATE) own_or_last<TOKENS * K>([&](int n, int i) {
        const int d = i % K < KEY ? i % K : 0;
        in.g[n] = *place<GATE_IN>(a.g, request, i / K, head, d);
        in.bias[n] = GATE >= 2 && a.dt_bias.at ? *place<float>(a.dt_bias, 0, 0, head, d) : 0;
    });
    if (NORM) own_or_last<TOKENS * V>([&](int n, int i) {
        const int d = i % V < VALUE ? i % V : 0;
        in.weight[n] = a.norm_weight[d];
        if (OUTPUT_GATE) in.gate[n] = *place<IN>(a.output_gate, request, i / V, head, d);
    });
    in.beta = *place<BETA_IN>(a.beta, request, threadIdx.x < TOKENS ? threadIdx.x : 0, head, 0);
}

__device__ void load_window(Inputs& in, const Args& a, const Request& r, int head) {
    own_or_last<CHANNELS>([&](int n, int i) {
        const IN* row = a.windows + r.window * a.window_stride + r.first * a.channels;
        const int column = channel(a, r.number, head, i).column;
        #pragma unroll
        for (int w = 0; w < WIDTH - 1; ++w) in.old[n][w] = row[w * a.channels + column];
    });
}

// g, the log decay of one channel
__device__ float log_decay(float x, float A_log, float lower_bound) {
    const float rate = expf(fminf(A_log, 80));    // saturates, so that inf * 0 cannot occur
    // [gate-bounded] g = lower_bound sigmoid(exp(A_log) (x + dt_bias))
    if (GATE == 2) return lower_bound * sigmoid(rate * x);
    // [/gate-bounded]
    // [gate-softplus] g = -exp(A_log) softplus(x + dt_bias). Far below zero
    // softplus(x) = e^x, and one exponential takes the sum
    if (GATE == 3)
        return x < -40 ? -expf(fminf(A_log + x, 80))
                       : -rate * (fmaxf(x, 0) + log1pf(expf(-fabsf(x))));
    // [/gate-softplus]
    return x;
}

// q, k, v, alpha, beta and the output gate of every token, to shared memory; the window, one row further. keys: not where
// the first value head of a group has left q and k for the others
__device__ void prepare(Shared& s, const Inputs& in, const Args& a, const Request& r, int head, bool keys) {
    own<CHANNELS>([&](int n, int i) {
        if (!keys && i < 2 * K) return;
        const Channel c = channel(a, r.number, head, i);
        // [short-convolution] x_t = SiLU(sum_w taps_w input_{t-WIDTH+1+w}). A thread
        // owns a channel: it alone reads and writes this column of the window. Inputs
        // stay as they came in, before SiLU; the next step's oldest lies in row n - 1
        auto input = [&](int t) {
            return t < WIDTH - 1 ? in.old[n][t] : in.x[n][t - (WIDTH - 1)];
        };
        #pragma unroll
        for (int t = 0; t < TOKENS; ++t) {
            float x = 0;
            #pragma unroll
            for (int w = 0; w < WIDTH; ++w)
                x += float(in.taps[n][w]) * float(input(t + w));
            s.x[t][i] = !c.there ? 0 : WIDTH > 1 ? x * sigmoid(x) : float(in.x[n][t]);
        }
        IN* window = a.windows + r.window * a.window_stride + c.column;
        #pragma unroll
        for (int t = 0; WIDTH > 1 && t < WIDTH - 2 + TOKENS; ++t)
            if (c.there) window[t * a.channels] = input(t + 1);
        // [/short-convolution]
    });
    own<TOKENS * K>([&](int n, int i) {
        const float g = GATE ? log_decay(float(in.g[n]) + in.bias[n], in.A_log, a.lower_bound) : 0;
        s.alpha[i / K][i % K] = expf(g);
    });
    if (NORM) own<TOKENS * V>([&](int n, int i) {
        const float x = OUTPUT_GATE ? float(in.gate[n]) : 0;
        const float gate = OUTPUT_GATE == 2 ? x * sigmoid(x) : OUTPUT_GATE ? sigmoid(x) : 1;
        s.gate[i / V][i % V] = float(in.weight[n]) * gate;
    });
    const float beta = float(in.beta);
    if (threadIdx.x < TOKENS) s.beta[threadIdx.x] = BETA_SIGMOID ? BETA_SIGMOID * sigmoid(beta) : beta;
}

// visit(t) for the tokens of this warp
template <class F> __device__ void own_tokens(F visit) {
    for (int t = threadIdx.x / 32; t < TOKENS; t += THREADS / 32) visit(t);
}

__device__ void norms(Shared& s, const Args& a) {
    own_tokens([&](int t) {
        // [l2-norm] x / sqrt(|x|^2 + 1e-6), for q and k a factor of what they meet
        float qq = 0, kk = 0, kq = 0;
        for (int d = threadIdx.x % 32; d < K; d += 32) {
            const float q = s.x[t][d], k = s.x[t][K + d];
            qq += q * q, kk += k * k, kq += k * q;
        }
        qq = lane_sum<32>(qq), kk = lane_sum<32>(kk), kq = lane_sum<32>(kq);
        const float q_norm = (L2NORM ? rsqrtf(qq + 1e-6f) : 1) * a.scale;
        const float k_norm = L2NORM ? rsqrtf(kk + 1e-6f) : 1;
        if (threadIdx.x % 32 == 0)
            s.q_norm[t] = q_norm, s.k_norm[t] = k_norm,
            s.kq[t] = q_norm * k_norm * kq;
        // [/l2-norm]
    });
}

// visit(c, d) for this thread's share of a row of a state: 4 channels from d on
template <class F> __device__ void own_row(F visit) {
    #pragma unroll
    for (int c = 0; c < CHUNKS; ++c) visit(c, 32 * c + 4 * (threadIdx.x % LANES));
}

// row n of a state through all tokens: to the slots, and o to shared memory
__device__ void row(Shared& s, const Args& a, float* states, int n) {
    auto four = [](const float* x) -> const float4& { return *reinterpret_cast<const float4*>(x); };
    const bool there = VALUE % STRIDE == 0 || n < VALUE;
    float4 S[CHUNKS];    // spread over the lanes
    own_row([&](int c, int d) { S[c] = there ? four(&s.S[n][d]) : float4{}; });
    #pragma unroll 1
    for (int t = 0; t < TOKENS; ++t) {
        // [kda-recurrence] S <- S Diag(alpha), u = beta (v - S k), S <- S + u k^T,
        // o = S q. One pass over the row reads both answers from the decayed state,
        // since (S + u k^T) q = S q + u (k.q); one sum over the lanes; then the write
        float Sk = 0, Sq = 0;
        own_row([&](int c, int d) {
            const float4 alpha = four(&s.alpha[t][d]);
            S[c] = alpha * S[c];
            Sk += dot(S[c], four(&s.x[t][K + d]));
            Sq += dot(S[c], four(&s.x[t][d]));
        });
        const float v = there ? s.x[t][2 * K + n] : 0;
        const float u = s.beta[t] * (v - s.k_norm[t] * lane_sum<LANES>(Sk));
        const float o = s.q_norm[t] * lane_sum<LANES>(Sq) + u * s.kq[t];
        const float w = u * s.k_norm[t];
        own_row([&](int c, int d) {
            const float4 k = four(&s.x[t][K + d]);
            S[c] = {S[c].x + w * k.x, S[c].y + w * k.y,
                    S[c].z + w * k.z, S[c].w + w * k.w};
        });
        // [/kda-recurrence]
        const int slot = s.slot[t];
        float* state = states + slot * a.state_stride + n * KEY;
        own_row([&](int c, int d) {
            if (there && slot >= 0 && (KEY == K || d < KEY)) *reinterpret_cast<float4*>(state + d) = S[c];
        });
        if (there && threadIdx.x % LANES == 0) s.x[t][2 * K + n] = o;    // all 8 lanes have their v
    }
}

// y of all tokens of a head; who takes no part gets zeros
__device__ void finish(const Shared& s, const Args& a, const Request& r, int head) {
    own_tokens([&](int t) {
        const float* o = s.x[t] + 2 * K;
        float square = 0;
        for (int n = threadIdx.x % 32; NORM && r.takes_part && n < VALUE; n += 32) square += o[n] * o[n];
        // [norm-attention] y = o / sqrt(mean o^2 + eps) weight sigmoid(output gate)
        const float factor = rsqrtf(lane_sum<32>(square) / VALUE + a.eps);
        for (int n = threadIdx.x % 32; n < VALUE; n += 32) {
            float y = r.takes_part ? o[n] : 0;
            if (NORM && r.takes_part) y *= factor * s.gate[t][n];
            *const_cast<IN*>(place<IN>(a.y, r.number, t, head, n)) = IN(y);
        }
        // [/norm-attention]
    });
}

// One thread sends for the state of the next head of this block, or of a block that will run soon, so that it waits in the
// L2: about one per cent on an H200. Twice as far ahead it costs more than it gives
__device__ void look_ahead(const Args& a, const float* next_head, long long block, int blocks, int members) {
    if (next_head) return prefetch(next_head, 4 * VALUE * KEY);
    if (!a.ahead || block >= a.requests * blocks) return;
    const Request r = request(a, block / blocks);
    const float* state = a.states + r.state * a.state_stride + block % blocks * members * VALUE * KEY;
    if (r.takes_part) prefetch(state, 4 * VALUE * KEY);
}

// One thread block: one request and the value heads that share one key head, one after the other, for a window must be
// read by all of them before it moves on, and blocks cannot wait for each other. Without a convolution: one value head
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) kda_decode(const __grid_constant__ Args a) {
    extern __shared__ __align__(16) unsigned char memory[];
    Shared& s = *reinterpret_cast<Shared*>(memory);
    constexpr int members = WIDTH > 1 ? GROUP : 1;
    const int blocks = a.heads / members;
    const Request r = request(a, blockIdx.x / blocks);
    if (threadIdx.x < TOKENS) s.slot[threadIdx.x] = a.state_slots[r.number * a.slot_columns + threadIdx.x];
    const int first = blockIdx.x % blocks * members;

    for (int member = 0; member < members; ++member) {
        const int head = first + member;
        Inputs in;
        load_inputs(in, a, r.number, head);
        if (!r.takes_part) { finish(s, a, r, head); continue; }
        float* states = a.states + head * VALUE * KEY;
        const float* state = states + r.state * a.state_stride;    // [VALUE, KEY]
        #pragma unroll
        for (int n = threadIdx.x / LANES; n < VALUE; n += STRIDE)
            own_row([&](int, int d) { copy_async(&s.S[n][d], state + n * KEY + (d < KEY ? d : 0), d < KEY); });
        load_window(in, a, r, head);
        if (threadIdx.x == THREADS - 1)
            look_ahead(a, member + 1 < members ? state + VALUE * KEY : nullptr, blockIdx.x + a.ahead, blocks, members);
        prepare(s, in, a, r, head, !member);
        __syncthreads();    // q, k, v, alpha and beta are complete
        norms(s, a);
        wait_for_copies();
        __syncthreads();    // the norms are complete
        #pragma unroll 1    // the registers of two rows would cost a block
        for (int n = threadIdx.x / LANES; n < ROWS * STRIDE; n += STRIDE) row(s, a, states, n);
        __syncthreads();    // o is complete
        finish(s, a, r, head);
        if (member + 1 < members) __syncthreads();    // nobody reads o or the output gate any more
    }
}
