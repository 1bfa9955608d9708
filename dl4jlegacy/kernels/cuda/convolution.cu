// Convolution of images (channels, height, width, lanes) as matrix products: the columns, their way back, the bias.
//
// A column holds what one output pixel of one example sees: C * kh * kw values. The matrix of columns is (C * kh * kw,
// count * lanes) for the `count` output pixels that begin with pixel `first`, so that neighbours in memory are the same
// pixel of neighbouring examples, in the images as in the columns. Sixteen bytes are moved at a time where the lanes
// and the addresses allow it. A block works on a span of one row of a matrix, so that it divides for its row once; what
// is counted in 32 bits Python has looked at, since a division in 64 takes longer than the memory. Every sum is taken by
// one thread in the order of the kernel's places.

struct alignas(16) Pack {
    REAL v[16 / sizeof(REAL)];
};

#define SPAN (8 * BLOCK)  // elements, or sixteen bytes, of one row that a block works on
#define PACKED (16 / (long long)sizeof(REAL))

__device__ inline bool packs(const void* a, const void* b, long long lanes) {
    return lanes % PACKED == 0 && ((unsigned long long)a | (unsigned long long)b) % 16 == 0;
}

__device__ inline void clear(REAL& x) { x = 0; }
__device__ inline void clear(Pack& x) {
    for (int i = 0; i < PACKED; ++i) x.v[i] = 0;
}

__device__ inline void add(REAL& x, const REAL& y) { x += y; }
__device__ inline void add(Pack& x, const Pack& y) {
    for (int i = 0; i < PACKED; ++i) x.v[i] += y.v[i];
}

// NaN stays NaN: a rectifier that hid it would hide a network that has blown up.
__device__ inline void shift(REAL& x, REAL b, bool relu) {
    x += b;
    if (relu && x <= 0) x = 0;
}
__device__ inline void shift(Pack& x, REAL b, bool relu) {
    for (int i = 0; i < PACKED; ++i) shift(x.v[i], b, relu);
}

template <typename T>
__device__ inline void columns_of(const T* __restrict__ x, T* __restrict__ columns, unsigned rows, long long height,
                                  long long width, unsigned lanes, unsigned kh, unsigned kw, unsigned sh, unsigned sw,
                                  unsigned dh, unsigned dw, unsigned across, unsigned first, unsigned count) {
    const unsigned items = count * lanes, parts = (items + SPAN - 1) / SPAN;
    for (unsigned block = blockIdx.x; block < rows * parts; block += gridDim.x) {
        const unsigned row = block / parts, begin = block % parts * SPAN;
        const unsigned channel = row / (kh * kw), place = row % (kh * kw);
        const unsigned down = place / kw * dh, right = place % kw * dw;
        const T* source = x + channel * height * width * lanes;
        T* target = columns + (long long)row * items;
        for (unsigned item = begin + threadIdx.x; item < begin + SPAN && item < items; item += BLOCK) {
            const unsigned pixel = first + item / lanes, lane = item % lanes;
            const long long i = (long long)(pixel / across) * sh + down, j = (long long)(pixel % across) * sw + right;
            target[item] = source[(i * width + j) * lanes + lane];
        }
    }
}

// x (C, height, width, lanes) -> columns (C * kh * kw, count * lanes); `across` output pixels are in a row.
extern "C" __global__ void __launch_bounds__(BLOCK)
conv_columns(const REAL* __restrict__ x, REAL* __restrict__ columns, long long channels, long long height,
             long long width, long long lanes, long long kh, long long kw, long long sh, long long sw, long long dh,
             long long dw, long long across, long long first, long long count) {
    const unsigned rows = (unsigned)(channels * kh * kw);
    if (packs(x, columns, lanes))
        columns_of((const Pack*)x, (Pack*)columns, rows, height, width, lanes / PACKED, kh, kw, sh, sw, dh, dw, across,
                   first, count);
    else
        columns_of(x, columns, rows, height, width, lanes, kh, kw, sh, sw, dh, dw, across, first, count);
}

template <typename T>
__device__ inline void bias_of(T* y, const REAL* __restrict__ b, long long total, long long filters, long long items,
                               bool relu) {
#pragma unroll 1
    EACH(k, total) {
        T value = y[k];
        shift(value, b[column_of(row_of(k, items), filters)], relu);
        y[k] = value;
    }
}

// y (rows, items) += b (filters,), row r that of filter r % filters; then negative values become 0 if `relu`.
extern "C" __global__ void __launch_bounds__(BLOCK)
conv_bias(REAL* y, const REAL* __restrict__ b, long long rows, long long filters, long long items, long long relu) {
    if (packs(y, y, items))
        bias_of((Pack*)y, b, rows * (items / PACKED), filters, items / PACKED, relu != 0);
    else
        bias_of(y, b, rows * items, filters, items, relu != 0);
}

#define FILTERS 8  // of one block: their sums stay in registers
#define PLACES 64  // C * kh * kw of a kernel that is small enough for conv_direct

__device__ inline void multiply(REAL& sum, REAL w, const REAL& x) { sum += w * x; }
__device__ inline void multiply(Pack& sum, REAL w, const Pack& x) {
    for (int i = 0; i < PACKED; ++i) sum.v[i] += w * x.v[i];
}

template <typename T>
__device__ inline void direct(const T* __restrict__ x, const Pack* weights, const REAL* __restrict__ b,
                              T* __restrict__ y, int filters, int channels, long long height, long long width,
                              unsigned lanes, int kh, int kw, int sh, int sw, int dh, int dw, unsigned pixels,
                              unsigned across, bool relu) {
    const unsigned items = pixels * lanes;
    const int first = blockIdx.y * FILTERS;
    for (unsigned item = blockIdx.x * BLOCK + threadIdx.x; item < items; item += gridDim.x * BLOCK) {
        const unsigned pixel = item / lanes;
        const T* corner = x + ((pixel / across * sh) * width + pixel % across * sw) * lanes + item % lanes;
        const Pack* weight = weights;
        T sums[FILTERS];
#pragma unroll
        for (int f = 0; f < FILTERS; ++f) clear(sums[f]);
        for (int c = 0; c < channels; ++c)
            for (int u = 0; u < kh; ++u)
                for (int v = 0; v < kw; ++v, weight += FILTERS / PACKED) {
                    const T seen = corner[((c * height + u * dh) * width + v * dw) * lanes];
#pragma unroll
                    for (int g = 0; g < FILTERS / PACKED; ++g) {
                        const Pack several = weight[g];
                        for (int f = 0; f < PACKED; ++f) multiply(sums[g * PACKED + f], several.v[f], seen);
                    }
                }
#pragma unroll
        for (int f = 0; f < FILTERS; ++f)
            if (first + f < filters) {
                shift(sums[f], b[first + f], relu);
                y[(long long)(first + f) * items + item] = sums[f];
            }
    }
}

// One tile: y (filters, pixels, lanes) = the correlation of x (C, height, width, lanes) with a small W, bias and
// rectifier at once: for the first layer of a network, whose columns would be many times its images.
extern "C" __global__ void __launch_bounds__(BLOCK)
conv_direct(const REAL* __restrict__ x, const REAL* __restrict__ W, const REAL* __restrict__ b, REAL* __restrict__ y,
            long long filters, long long channels, long long height, long long width, long long lanes, long long kh,
            long long kw, long long sh, long long sw, long long dh, long long dw, long long pixels, long long across,
            long long relu) {
    __shared__ Pack weights[PLACES * FILTERS / PACKED];
    const int places = (int)(channels * kh * kw);
    for (int k = threadIdx.x; k < places * FILTERS; k += BLOCK) {
        const long long f = (long long)blockIdx.y * FILTERS + k % FILTERS;
        ((REAL*)weights)[k] = f < filters ? W[f * places + k / FILTERS] : 0;
    }
    __syncthreads();
    if (packs(x, y, lanes))
        direct((const Pack*)x, weights, b, (Pack*)y, filters, channels, height, width, lanes / PACKED, kh, kw, sh, sw,
               dh, dw, pixels, across, relu != 0);
    else
        direct(x, weights, b, y, filters, channels, height, width, lanes, kh, kw, sh, sw, dh, dw, pixels, across,
               relu != 0);
}

// The index of the output that place `place` of the kernel meets at `at`, or -1 if there is none.
__device__ inline int met(int at, int place, int dilation, int stride, int out) {
    const int start = at - place * dilation;
    if (start < 0) return -1;
    if (stride == 1) return start < out ? start : -1;
    const int index = start / stride;
    return index * stride == start && index < out ? index : -1;
}

template <typename T>
__device__ inline void gather(const T* __restrict__ columns, T* __restrict__ dx, unsigned channels, long long height,
                              unsigned width, unsigned lanes, int kh, int kw, int sh, int sw, int dh, int dw, int down,
                              int across, int first, int count, unsigned top, unsigned lines, bool accumulate) {
    const unsigned items = lines * width * lanes, parts = (items + SPAN - 1) / SPAN;
    const long long steps = (long long)count * lanes;
    for (unsigned block = blockIdx.x; block < channels * parts; block += gridDim.x) {
        const unsigned channel = block / parts, begin = block % parts * SPAN;
        const T* from = columns + channel * kh * kw * steps;
        T* to = dx + (channel * height + top) * width * lanes;
        for (unsigned item = begin + threadIdx.x; item < begin + SPAN && item < items; item += BLOCK) {
            const unsigned pixel = item / lanes;
            const int row = (int)(top + pixel / width), column = (int)(pixel % width);
            const T* source = from + item % lanes;
            T sum;
            clear(sum);
            if (accumulate) sum = to[item];
            for (int u = 0; u < kh; ++u) {
                const int i = met(row, u, dh, sh, down);
                if (i < 0) continue;
                for (int v = 0; v < kw; ++v) {
                    const int j = met(column, v, dw, sw, across), at = i * across + j - first;
                    if (j >= 0 && at >= 0 && at < count) add(sum, source[(u * kw + v) * steps + (long long)at * lanes]);
                }
            }
            to[item] = sum;
        }
    }
}

// dx (C, height, width, lanes), `lines` rows from `top` on: what the columns of `count` pixels bring them, or add.
extern "C" __global__ void __launch_bounds__(BLOCK)
conv_gather(const REAL* __restrict__ columns, REAL* __restrict__ dx, long long channels, long long height,
            long long width, long long lanes, long long kh, long long kw, long long sh, long long sw, long long dh,
            long long dw, long long down, long long across, long long first, long long count, long long top,
            long long lines, long long accumulate) {
    if (packs(columns, dx, lanes))
        gather((const Pack*)columns, (Pack*)dx, channels, height, width, lanes / PACKED, kh, kw, sh, sw, dh, dw, down,
               across, first, count, top, lines, accumulate != 0);
    else
        gather(columns, dx, channels, height, width, lanes, kh, kw, sh, sw, dh, dw, down, across, first, count, top,
               lines, accumulate != 0);
}
