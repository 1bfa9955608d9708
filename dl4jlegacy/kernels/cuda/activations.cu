// Layers' elementwise work: bias and activation forward, the activation's gradient and the sums of columns backward.

template <int F>
__device__ __forceinline__ void forward(REAL *z, const REAL *b, long long size, long long n) {
    EACH(k, size) {
        REAL x = z[k] + b[column_of(k, n)];
        if (F == LEAKYRELU) x = x * (x > 0 ? (REAL)1 : (REAL)0.01);
        if (F == RELU) x = x < 0 ? (REAL)0 : x;  // NaN stays
        if (F == SIGMOID) x = sigmoid(x);
        if (F == TANH) x = tanh(x);
        z[k] = x;
    }
}

// z (size / n, n), b (n)
extern "C" __global__ void __launch_bounds__(BLOCK)
bias_activation(REAL *__restrict__ z, const REAL *__restrict__ b, long long size, long long n, long long activation) {
    FOR_ACTIVATION(activation, forward, z, b, size, n)
}

// A block of 32 x 8 threads sums 32 columns over `span` rows: each thread every eighth row, then the eight in order.
template <int F>
__device__ __forceinline__ void backward(REAL *dy, const REAL *y, REAL *sums, long long m, long long n, long long span) {
    __shared__ REAL part[8][32];
    long long column = (long long)blockIdx.x * 32 + threadIdx.x;
    long long first = (long long)blockIdx.y * span, last = min(first + span, m);
    REAL total = 0;
    if (column < n)
        for (long long row = first + threadIdx.y; row < last; row += 8) {
            long long k = row * n + column;
            REAL d = dy[k];
            if (F != IDENTITY) dy[k] = d = d * derivative<F>(y[k]);
            total += d;
        }
    part[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y == 0 && column < n) {
        for (int i = 1; i < 8; ++i) total += part[i][threadIdx.x];
        sums[blockIdx.y * n + column] = total;
    }
}

// dy, y (m, n); sums (grid.y, n). With IDENTITY dy is only read and y not at all: the second stage, which sums the
// sums of all parts, is this kernel too.
extern "C" __global__ void __launch_bounds__(BLOCK)
activation_backward_bias(REAL *__restrict__ dy, const REAL *__restrict__ y, REAL *__restrict__ sums, long long m,
                         long long n, long long span, long long activation) {
    FOR_ACTIVATION(activation, backward, dy, y, sums, m, n, span)
}

// Contrastive divergence's two sums, cut into blocks as above, ``activation_backward_bias`` adds the parts up. model, data
// (m, n): sums (grid.y, n) = factor (model - data), and data goes to `copy` on the way.
extern "C" __global__ void __launch_bounds__(BLOCK)
difference_sums(const REAL *__restrict__ model, const REAL *__restrict__ data, REAL *__restrict__ copy,
                REAL *__restrict__ sums, long long m, long long n, long long span, double factor) {
    __shared__ REAL part[8][32];
    long long column = (long long)blockIdx.x * 32 + threadIdx.x;
    long long first = (long long)blockIdx.y * span, last = min(first + span, m);
    REAL total = 0;
    if (column < n)
        for (long long row = first + threadIdx.y; row < last; row += 8) {
            long long k = row * n + column;
            REAL own = data[k];
            copy[k] = own;
            total += model[k] - own;
        }
    part[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y == 0 && column < n) {
        for (int i = 1; i < 8; ++i) total += part[i][threadIdx.x];
        sums[blockIdx.y * n + column] = total * (REAL)factor;
    }
}

// x (m, n): rows from `half` on times factor, those above times -factor; sums (grid.y, n) of what they become.
extern "C" __global__ void __launch_bounds__(BLOCK)
signed_sums(REAL *__restrict__ x, REAL *__restrict__ sums, long long m, long long n, long long span, long long half,
            double factor) {
    __shared__ REAL part[8][32];
    long long column = (long long)blockIdx.x * 32 + threadIdx.x;
    long long first = (long long)blockIdx.y * span, last = min(first + span, m);
    REAL plus = (REAL)factor, total = 0;
    if (column < n)
        for (long long row = first + threadIdx.y; row < last; row += 8) {
            long long k = row * n + column;
            REAL own = x[k] * (row < half ? -plus : plus);
            x[k] = own;
            total += own;
        }
    part[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y == 0 && column < n) {
        for (int i = 1; i < 8; ++i) total += part[i][threadIdx.x];
        sums[blockIdx.y * n + column] = total;
    }
}

// Block (s, c) does places s * span ... of channel c; every channel has `tiles` runs of `area` places.
template <int F>
__device__ __forceinline__ void channels_back(REAL *dy, const REAL *y, REAL *sums, long long tiles, long long area,
                                              long long span) {
    __shared__ REAL part[BLOCK];
    long long channel = blockIdx.y, first = blockIdx.x * span, last = min(first + span, tiles * area);
    REAL total = 0;
    for (long long i = first + threadIdx.x; i < last; i += BLOCK) {
        long long tile = row_of(i, area), k = (tile * gridDim.y + channel) * area + (i - tile * area);
        REAL d = dy[k];
        if (F != IDENTITY) dy[k] = d = d * derivative<F>(y[k]);
        total += d;
    }
    part[threadIdx.x] = total;
    tree_sum(part, BLOCK, threadIdx.x);
    if (threadIdx.x == 0) sums[blockIdx.x * gridDim.y + channel] = part[0];
}

// dy, y (tiles, channels, area); sums (grid.x, channels)
extern "C" __global__ void __launch_bounds__(BLOCK)
channel_backward(REAL *__restrict__ dy, const REAL *__restrict__ y, REAL *__restrict__ sums, long long tiles,
                 long long area, long long span, long long activation) {
    FOR_ACTIVATION(activation, channels_back, dy, y, sums, tiles, area, span)
}
