// Flat vectors, rounded as on the CPU (compiled without fused multiply-add): product and sum each on its own.

#define MOST 16  // vectors of one pass

// A thread does WIDE elements at a time of at most COUNT vectors: all of them are on their way before the first sum.
template <int WIDE, int COUNT>
__device__ __forceinline__ void sum_up(REAL *out, long long n, int count, const REAL *const *v, const REAL *w) {
    const long long step = (long long)BLOCK * WIDE;
    for (long long first = blockIdx.x * step + threadIdx.x; first < n; first += gridDim.x * step) {
        REAL x[WIDE][COUNT];
#pragma unroll
        for (int j = 0; j < WIDE; ++j)
#pragma unroll
            for (int k = 0; k < COUNT; ++k) x[j][k] = k < count && first + j * BLOCK < n ? v[k][first + j * BLOCK] : 0;
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
            REAL total = w[0] * x[j][0];
#pragma unroll
            for (int k = 1; k < COUNT; ++k)
                if (k < count) total += w[k] * x[j][k];
            if (first + j * BLOCK < n) out[first + j * BLOCK] = total;
        }
    }
}

// out = w[0] v[0] + ... + w[count - 1] v[count - 1] in this order; each vector is read once. out may be v[0].
extern "C" __global__ void __launch_bounds__(BLOCK)
weighted_sum(REAL *out, long long n, long long count, const REAL *v0, const REAL *v1, const REAL *v2, const REAL *v3,
             const REAL *v4, const REAL *v5, const REAL *v6, const REAL *v7, const REAL *v8, const REAL *v9,
             const REAL *v10, const REAL *v11, const REAL *v12, const REAL *v13, const REAL *v14, const REAL *v15,
             double w0, double w1, double w2, double w3, double w4, double w5, double w6, double w7, double w8,
             double w9, double w10, double w11, double w12, double w13, double w14, double w15) {
    const REAL *v[MOST] = {v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, v10, v11, v12, v13, v14, v15};
    REAL w[MOST] = {(REAL)w0, (REAL)w1, (REAL)w2,  (REAL)w3,  (REAL)w4,  (REAL)w5,  (REAL)w6,  (REAL)w7,
                    (REAL)w8, (REAL)w9, (REAL)w10, (REAL)w11, (REAL)w12, (REAL)w13, (REAL)w14, (REAL)w15};
    if (count <= 4)
        sum_up<4, 4>(out, n, (int)count, v, w);
    else
        sum_up<2, MOST>(out, n, (int)count, v, w);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
axpy(REAL *__restrict__ y, const REAL *__restrict__ x, long long n, double a) {
    REAL factor = (REAL)a;
    EACH(i, n) y[i] += factor * x[i];
}

extern "C" __global__ void __launch_bounds__(BLOCK)
add_regularization(REAL *__restrict__ gradient, const REAL *__restrict__ params, long long n, double l1, double l2) {
    REAL lasso = (REAL)l1, ridge = (REAL)l2;
    EACH(i, n) {
        REAL g = gradient[i], p = params[i];
        if (l2 != 0) g += ridge * p;
        if (l1 != 0) g += lasso * (p > 0 ? (REAL)1 : p < 0 ? (REAL)-1 : p);
        gradient[i] = g;
    }
}

// bad is 0 before; whoever finds a NaN or an infinity writes 1
extern "C" __global__ void __launch_bounds__(BLOCK) all_finite(const REAL *__restrict__ x, int *bad, long long n) {
    int found = 0;
    EACH(i, n) found |= !isfinite(x[i]);
    if (found) *bad = 1;
}
