// Rows to probabilities, and the cross entropies of probabilities.

// Replaces a row (own[0 ... end - 1]) plus b, unless that is null, by its probabilities; each element stays with one of
// the `width` threads of the row, whose values meet in part[0 ... width - 1].
__device__ __forceinline__ void probabilities(REAL *own, const REAL *b, long long end, int width, int lane, REAL *part) {
    REAL most = -REAL_INFINITY;
    for (long long j = lane; j < end; j += width) {
        REAL x = own[j];
        if (b) own[j] = x = x + b[j];
        most = x > most ? x : most;
    }
    part[lane] = most;
    for (int half = width / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half && part[lane + half] > part[lane]) part[lane] = part[lane + half];
    }
    __syncthreads();
    most = part[0];
    __syncthreads();
    REAL total = 0;
    for (long long j = lane; j < end; j += width) total += own[j] = exp(own[j] - most);  // a NaN makes the sum NaN
    part[lane] = total;
    tree_sum(part, width, lane);
    for (long long j = lane; j < end; j += width) own[j] /= part[0];
}

// A row's `width` threads (a power of two, at most BLOCK) lie side by side; a block does BLOCK / width rows.
extern "C" __global__ void __launch_bounds__(BLOCK)
softmax(REAL *__restrict__ z, long long m, long long n, long long width) {
    __shared__ REAL shared[BLOCK];
    int lane = threadIdx.x % (int)width;
    long long row = (long long)blockIdx.x * (BLOCK / width) + threadIdx.x / (int)width;
    probabilities(z + row * n, nullptr, row < m ? n : 0, (int)width, lane, shared + (threadIdx.x - lane));
}

// -label log(max(p, 1e-10))
__device__ __forceinline__ double surprise(REAL p, REAL label) {
    REAL clipped = p < (REAL)1e-10 ? (REAL)1e-10 : p;  // NaN stays
    return -(double)(label * log(clipped));
}

// The sum of a row's labels (own[0 ... end - 1]), whose `width` threads share it as in probabilities.
__device__ __forceinline__ REAL row_total(const REAL *own, long long end, int width, int lane, REAL *part) {
    REAL total = 0;
    for (long long j = lane; j < end; j += width) total += own[j];
    __syncthreads();  // what part held before has been read
    part[lane] = total;
    tree_sum(part, width, lane);
    return part[0];
}

// z (m, n) + b -> probabilities; dz = scale (total p - labels), total the sum of the row's labels; sums[block] = the
// block's part of -sum labels log p. Threads share the rows as in softmax, whose shared memory the sum of doubles does
// not touch.
extern "C" __global__ void __launch_bounds__(BLOCK)
softmax_loss(REAL *__restrict__ z, const REAL *__restrict__ b, const REAL *__restrict__ labels, REAL *__restrict__ dz,
             double *__restrict__ sums, long long m, long long n, long long width, double scale) {
    __shared__ REAL shared[BLOCK];
    __shared__ double part[BLOCK];
    int lane = threadIdx.x % (int)width;
    long long row = (long long)blockIdx.x * (BLOCK / width) + threadIdx.x / (int)width, end = row < m ? n : 0;
    probabilities(z + row * n, b, end, (int)width, lane, shared + (threadIdx.x - lane));
    REAL whole = row_total(labels + row * n, end, (int)width, lane, shared + (threadIdx.x - lane));
    REAL factor = (REAL)scale;
    double total = 0;
    for (long long j = lane; j < end; j += width) {
        REAL p = z[row * n + j], label = labels[row * n + j];
        total += surprise(p, label);
        dz[row * n + j] = (whole * p - label) * factor;
    }
    part[threadIdx.x] = total;
    tree_sum(part, BLOCK, threadIdx.x);
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

// dz = total p - labels, which may be p, total the sum of the row's labels; sums[block] = the block's part of
// -sum labels log(max(p, 1e-10)). Threads share the rows as in softmax.
extern "C" __global__ void __launch_bounds__(BLOCK)
softmax_cross_entropy(const REAL *p, const REAL *__restrict__ labels, REAL *dz, double *__restrict__ sums, long long m,
                      long long n, long long width) {
    __shared__ REAL shared[BLOCK];
    __shared__ double part[BLOCK];
    int lane = threadIdx.x % (int)width;
    long long row = (long long)blockIdx.x * (BLOCK / width) + threadIdx.x / (int)width, end = row < m ? n : 0;
    REAL whole = row_total(labels + row * n, end, (int)width, lane, shared + (threadIdx.x - lane));
    double total = 0;
    for (long long j = lane; j < end; j += width) {
        REAL own = p[row * n + j], label = labels[row * n + j];
        total += surprise(own, label);
        dz[row * n + j] = whole * own - label;
    }
    part[threadIdx.x] = total;
    tree_sum(part, BLOCK, threadIdx.x);
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

// sums[block] = the block's part of -sum labels log(q) + (1 - labels) log(1 - q), q = p kept from 1e-5 to 1 - 1e-5
extern "C" __global__ void __launch_bounds__(BLOCK)
binary_cross_entropy(const REAL *__restrict__ p, const REAL *__restrict__ labels, double *__restrict__ sums,
                     long long size) {
    __shared__ double part[BLOCK];
    const REAL low = (REAL)1e-5, high = (REAL)(1 - 1e-5);
    double total = 0;
    EACH(k, size) {
        REAL own = p[k], label = labels[k];
        REAL clipped = own < low ? low : own > high ? high : own;  // NaN stays
        total -= (double)(label * log(clipped) + (1 - label) * log(1 - clipped));
    }
    part[threadIdx.x] = total;
    tree_sum(part, BLOCK, threadIdx.x);
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}

// loss = the sum of n doubles, by one block
extern "C" __global__ void __launch_bounds__(BLOCK)
sum_doubles(const double *__restrict__ sums, double *__restrict__ loss, long long n) {
    __shared__ double part[BLOCK];
    double total = 0;
    for (long long i = threadIdx.x; i < n; i += BLOCK) total += sums[i];
    part[threadIdx.x] = total;
    tree_sum(part, BLOCK, threadIdx.x);
    if (threadIdx.x == 0) *loss = part[0];
}
