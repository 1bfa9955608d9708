// Pooling of tiles (planes, height, width, lanes). Forward, a thread makes one output; backward, a thread gathers one
// input's gradient from the windows that meet it, in the order of the window's places, so nothing is added twice at once.

enum Kind { AVG, MAX, PNORM, SUM };

struct Windows {
    int height, width, out_height, out_width, lanes, kh, kw, sh, sw, top, left;
};

#define WINDOWS \
    long long height, long long width, long long out_height, long long out_width, long long lanes, long long kh, \
        long long kw, long long sh, long long sw, long long top, long long left
#define WINDOWS_GIVEN \
    {(int)height, (int)width, (int)out_height, (int)out_width, (int)lanes, (int)kh, (int)kw, (int)sh, (int)sw, \
     (int)top, (int)left}

// The place k of planes of `rows` x `columns` x lanes.
struct Place {
    long long plane;
    int row, column, lane;
};

template <class Index>
__device__ __forceinline__ Place place_of(Index k, int rows, int columns, int lanes) {
    Index spot = k / (Index)lanes, line = spot / (Index)columns, plane = line / (Index)rows;
    return {(long long)plane, (int)(line - plane * (Index)rows), (int)(spot - line * (Index)columns),
            (int)(k - spot * (Index)lanes)};
}

__device__ __forceinline__ Place place(long long k, int rows, int columns, int lanes) {
    return k <= 0xffffffffLL ? place_of((unsigned)k, rows, columns, lanes)
                             : place_of((unsigned long long)k, rows, columns, lanes);
}

// What a window holds of the image: rows first ... last - 1, columns begin ... end - 1.
struct Span {
    int first, last, begin, end;
};

__device__ __forceinline__ Span span_of(const Windows &w, int i, int j) {
    int y = i * w.sh - w.top, x = j * w.sw - w.left;
    return {max(0, y), min(w.height, y + w.kh), max(0, x), min(w.width, x + w.kw)};
}

// x (planes, height, width, lanes); y, winners (planes, out_height, out_width, lanes) of `size` values
extern "C" __global__ void __launch_bounds__(BLOCK)
pool_forward(const REAL *__restrict__ x, REAL *__restrict__ y, int *__restrict__ winners, long long size, WINDOWS,
             long long kind, double p) {
    Windows w = WINDOWS_GIVEN;
    EACH(k, size) {
        Place at = place(k, w.out_height, w.out_width, w.lanes);
        Span span = span_of(w, at.row, at.column);
        const REAL *plane = x + at.plane * w.height * w.width * w.lanes + at.lane;
        REAL total = kind == MAX ? -REAL_INFINITY : (REAL)0;
        int winner = 0;
        for (int r = span.first; r < span.last; ++r)
            for (int c = span.begin; c < span.end; ++c) {
                REAL value = plane[((long long)r * w.width + c) * w.lanes];
                if (kind == MAX) {
                    if (value > total) {
                        total = value;
                        winner = (r - at.row * w.sh + w.top) * w.kw + c - at.column * w.sw + w.left;
                    }
                } else {
                    total += kind == PNORM ? pow(fabs(value), (REAL)p) : value;
                }
            }
        if (kind == AVG) total /= (REAL)((span.last - span.first) * (span.end - span.begin));
        if (kind == PNORM) total = pow(total, (REAL)(1 / p));
        y[k] = total;
        winners[k] = winner;
    }
}

// What the output at `out` gives to the input `value` by the place `code` of its window.
__device__ __forceinline__ REAL share(const Windows &w, const REAL *dy, const REAL *y, const int *winners,
                                      long long out, int i, int j, int code, REAL value, long long kind, REAL p) {
    REAL d = dy[out];
    if (kind == MAX) return winners[out] == code ? d : (REAL)0;
    if (kind == AVG) {
        Span span = span_of(w, i, j);
        return d / (REAL)((span.last - span.first) * (span.end - span.begin));
    }
    if (kind == PNORM) {
        REAL sign = value > 0 ? (REAL)1 : value < 0 ? (REAL)-1 : value;
        REAL norm = pow(y[out], p - 1);
        return d / (norm < (REAL)1e-8 ? (REAL)1e-8 : norm) * sign * pow(fabs(value), p - 1);
    }
    return d;
}

// dx, x (planes, height, width, lanes) of `size` values; dy, y, winners (planes, out_height, out_width, lanes)
extern "C" __global__ void __launch_bounds__(BLOCK)
pool_backward(const REAL *__restrict__ dy, const REAL *__restrict__ x, const REAL *__restrict__ y,
              const int *__restrict__ winners, REAL *__restrict__ dx, long long size, WINDOWS, long long kind,
              double p) {
    Windows w = WINDOWS_GIVEN;
    EACH(k, size) {
        Place at = place(k, w.height, w.width, w.lanes);
        long long start = at.plane * w.out_height * w.out_width;
        REAL value = kind == PNORM ? x[k] : (REAL)0, total = 0;
        for (int u = 0; u < w.kh; ++u) {
            int i = at.row + w.top - u;
            if (i < 0) break;
            if (i % w.sh || i / w.sh >= w.out_height) continue;
            i /= w.sh;
            for (int v = 0; v < w.kw; ++v) {
                int j = at.column + w.left - v;
                if (j < 0) break;
                if (j % w.sw || j / w.sw >= w.out_width) continue;
                j /= w.sw;
                long long out = (start + (long long)i * w.out_width + j) * w.lanes + at.lane;
                total += share(w, dy, y, winners, out, i, j, u * w.kw + v, value, kind, (REAL)p);
            }
        }
        dx[k] = total;
    }
}
