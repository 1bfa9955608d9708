// Threshold codec: +-(index + 1) for every element of at least tau in absolute value, in ascending order. A block does
// SPAN elements; it counts its own, one block adds the counts up, and each block writes its codes where they belong.

#define ITEMS 16
#define SPAN (BLOCK * ITEMS)

// counts[block] = how many of its elements qualify
extern "C" __global__ void __launch_bounds__(BLOCK)
threshold_count(const REAL *__restrict__ x, long long n, double tau, int *__restrict__ counts) {
    __shared__ int part[BLOCK];
    REAL limit = (REAL)tau;
    long long start = (long long)blockIdx.x * SPAN + threadIdx.x;
    int found = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        long long k = start + i * BLOCK;
        if (k < n) found += fabs(x[k]) >= limit;
    }
    part[threadIdx.x] = found;
    tree_sum(part, BLOCK, threadIdx.x);
    if (threadIdx.x == 0) counts[blockIdx.x] = part[0];
}

// Returns the sum of `value` over the threads before this one, and that over all threads in *total.
__device__ __forceinline__ int sum_before(int value, int *part, int *total) {
    int t = threadIdx.x;
    __syncthreads();  // part may still be read from the last time
    part[t] = value;
    for (int reach = 1; reach < BLOCK; reach *= 2) {
        __syncthreads();
        int other = t >= reach ? part[t - reach] : 0;
        __syncthreads();
        part[t] += other;
    }
    __syncthreads();
    *total = part[BLOCK - 1];
    return part[t] - value;
}

// counts[i] -> counts[0] + ... + counts[i - 1], total after the last; one block
extern "C" __global__ void __launch_bounds__(BLOCK) threshold_offsets(int *__restrict__ counts, long long blocks) {
    __shared__ int part[BLOCK];
    int sum = 0;
    for (long long first = 0; first < blocks; first += SPAN) {
        long long own = first + threadIdx.x * ITEMS;
        int value[ITEMS], mine = 0, all;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) mine += value[i] = own + i < blocks ? counts[own + i] : 0;
        int offset = sum + sum_before(mine, part, &all);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (own + i < blocks) counts[own + i] = offset;
            offset += value[i];
        }
        sum += all;
    }
    if (threadIdx.x == 0) counts[blocks] = sum;
}

// Writes the codes of the first `capacity` and takes their quanta off x.
extern "C" __global__ void __launch_bounds__(BLOCK)
threshold_encode(REAL *__restrict__ x, long long n, double tau, const int *__restrict__ offsets,
                 int *__restrict__ codes, long long capacity) {
    __shared__ REAL values[SPAN + SPAN / 32];  // with gaps: threads read runs of ITEMS, and no two the same bank
    __shared__ int part[BLOCK];
    REAL limit = (REAL)tau;
    long long start = (long long)blockIdx.x * SPAN, at = offsets[blockIdx.x];
    if (offsets[blockIdx.x + 1] == at || at >= capacity) return;  // the whole block: nothing to be said of it
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        int place = i * BLOCK + threadIdx.x;
        values[place + place / 32] = start + place < n ? x[start + place] : (REAL)0;
    }
    __syncthreads();
    int own = threadIdx.x * ITEMS, found = 0, all;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) found += fabs(values[own + i + (own + i) / 32]) >= limit;
    at += sum_before(found, part, &all);
    for (int i = 0; i < ITEMS && found && at < capacity; ++i) {
        REAL value = values[own + i + (own + i) / 32];
        if (!(fabs(value) >= limit)) continue;
        int code = (int)(start + own + i + 1);
        codes[at++] = value > 0 ? code : -code;
        x[start + own + i] = value > 0 ? value - limit : value + limit;
    }
}

// bad is 0 before; 1 where codes do not ascend or lie outside 1 ... size
extern "C" __global__ void __launch_bounds__(BLOCK)
threshold_check(const int *__restrict__ codes, long long n, long long size, int *__restrict__ bad) {
    EACH(i, n) {
        long long own = codes[i], last = i ? codes[i - 1] : 0;
        own = own < 0 ? -own : own;
        last = last < 0 ? -last : last;
        if (own <= last || own > size) *bad = 1;
    }
}

// target[|code| - 1] += sign(code) tau; no index twice
extern "C" __global__ void __launch_bounds__(BLOCK)
threshold_decode(const int *__restrict__ codes, long long n, double tau, REAL *__restrict__ target) {
    REAL quantum = (REAL)tau;
    EACH(i, n) {
        int code = codes[i];
        if (code > 0)
            target[code - 1] += quantum;
        else
            target[-code - 1] -= quantum;
    }
}
