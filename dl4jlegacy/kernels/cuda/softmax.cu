// Rows to probabilities, and the cross entropies of probabilities.

// A row's `width` threads (a power of two, at most BLOCK) lie side by side; a block does BLOCK / width rows.
extern "C" __global__ void __launch_bounds__(BLOCK)
softmax(REAL *__restrict__ z, long long m, long long n, long long width) {
    __shared__ REAL shared[BLOCK];
    int lane = threadIdx.x % (int)width;
    REAL *part = shared + (threadIdx.x - lane);
    long long row = (long long)blockIdx.x * (BLOCK / width) + threadIdx.x / (int)width;
    REAL *own = z + row * n;
    long long end = row < m ? n : 0;
    REAL most = -REAL_INFINITY;
    for (long long j = lane; j < end; j += width) most = own[j] > most ? own[j] : most;
    part[lane] = most;
    for (int half = (int)width / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half && part[lane + half] > part[lane]) part[lane] = part[lane + half];
    }
    __syncthreads();
    most = part[0];
    __syncthreads();
    REAL total = 0;
    for (long long j = lane; j < end; j += width) total += own[j] = exp(own[j] - most);  // a NaN makes the sum NaN
    part[lane] = total;
    tree_sum(part, (int)width, lane);
    for (long long j = lane; j < end; j += width) own[j] /= part[0];
}

// dz = p - labels, which may be p; sums[block] = the block's part of -sum labels log(max(p, 1e-10))
extern "C" __global__ void __launch_bounds__(BLOCK)
softmax_cross_entropy(const REAL *p, const REAL *__restrict__ labels, REAL *dz, double *__restrict__ sums,
                      long long size) {
    __shared__ double part[BLOCK];
    double total = 0;
    EACH(k, size) {
        REAL own = p[k], label = labels[k];
        REAL clipped = own < (REAL)1e-10 ? (REAL)1e-10 : own;  // NaN stays
        total -= (double)(label * log(clipped));
        dz[k] = own - label;
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
