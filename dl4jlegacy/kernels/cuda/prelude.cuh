// Prelude: compiled before every family. REAL is float or double, BLOCK threads run in a block unless a kernel says
// otherwise. No atomic operations anywhere, and every sum in an order that depends on sizes only: a second run gives
// the same bits.

#define BLOCK 256
#define REAL_INFINITY ((REAL)__int_as_float(0x7f800000))

// Every thread takes every (number of threads)-th of n pieces of work.
#define EACH(i, n) \
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < (n); \
         i += (long long)gridDim.x * blockDim.x)

// Numbers that change from step to step: by value, or, in a captured graph, from memory that is written before it runs.
#define KEY unsigned long long key, const unsigned long long *__restrict__ key_at
#define READ_KEY (key_at ? *key_at : key)
#define SCALARS double s0, double s1, double s2, double s3, const double *__restrict__ table
#define SCALAR(i) (table ? table[i] : s##i)

// The remainder of k / n, without a 64-bit division where 32 bits do.
__device__ __forceinline__ long long column_of(long long k, long long n) {
    return k <= 0xffffffffLL ? (long long)((unsigned)k % (unsigned)n) : k % n;
}

__device__ __forceinline__ long long row_of(long long k, long long n) {
    return k <= 0xffffffffLL ? (long long)((unsigned)k / (unsigned)n) : k / n;
}

// Sums part[0 ... width - 1], a power of two, of each group of `width` threads, into the group's part[0]. Every thread
// of the block must come here, with its value in part[its place].
template <class T>
__device__ __forceinline__ void tree_sum(T *part, int width, int lane) {
    for (int half = width / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) part[lane] += part[lane + half];
    }
    __syncthreads();
}

// f'(x) by the value y of f, for the activations in alphabetical order.
enum Activation { IDENTITY, LEAKYRELU, RELU, SIGMOID, TANH };

template <int F>
__device__ __forceinline__ REAL derivative(REAL y) {
    if (F == LEAKYRELU) return y > 0 ? (REAL)1 : (REAL)0.01;
    if (F == RELU) return y > 0 ? (REAL)1 : (REAL)0;
    if (F == SIGMOID) return y * (1 - y);
    if (F == TANH) return 1 - y * y;
    return 1;
}

__device__ __forceinline__ REAL sigmoid(REAL z) {
    return 1 / (1 + exp(-z));
}

// Runs BODY<F>(arguments) for the activation called for.
#define FOR_ACTIVATION(activation, BODY, ...) \
    switch ((int)(activation)) { \
        case IDENTITY: BODY<IDENTITY>(__VA_ARGS__); break; \
        case LEAKYRELU: BODY<LEAKYRELU>(__VA_ARGS__); break; \
        case RELU: BODY<RELU>(__VA_ARGS__); break; \
        case SIGMOID: BODY<SIGMOID>(__VA_ARGS__); break; \
        case TANH: BODY<TANH>(__VA_ARGS__); break; \
    }
