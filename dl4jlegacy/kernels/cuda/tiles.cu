// Rows to tiles and back: a transposition of (lanes x n) for each tile, through shared memory in squares of 32, so that
// reads and writes both run along memory. A block has 32 x 8 threads.

// The squares of all tiles are numbered: tile, then places, then lanes, the lanes' squares side by side.
struct Square {
    long long tile, place, lane;  // of its first element
};

__device__ __forceinline__ Square square_of(long long number, long long n, long long lanes) {
    long long across = (lanes + 31) / 32, down = (n + 31) / 32;
    return {number / (across * down), number / across % down * 32, number % across * 32};
}

// x (rows, n) -> tiles (count, n, lanes); lanes without a row become 0
extern "C" __global__ void __launch_bounds__(BLOCK)
tile(const REAL *__restrict__ x, REAL *__restrict__ tiles, long long squares, long long rows, long long n,
     long long lanes) {
    __shared__ REAL part[32][33];
    for (long long number = blockIdx.x; number < squares; number += gridDim.x) {
        Square at = square_of(number, n, lanes);
        long long place = at.place + threadIdx.x, lane = at.lane + threadIdx.x;
        __syncthreads();
        for (int i = threadIdx.y; i < 32; i += 8) {
            long long row = at.tile * lanes + at.lane + i;
            bool there = at.lane + i < lanes && row < rows && place < n;
            part[i][threadIdx.x] = there ? x[row * n + place] : (REAL)0;
        }
        __syncthreads();
        for (int i = threadIdx.y; i < 32; i += 8)
            if (lane < lanes && at.place + i < n)
                tiles[(at.tile * n + at.place + i) * lanes + lane] = part[threadIdx.x][i];
    }
}

// tiles (count, n, lanes) -> x (rows, n)
extern "C" __global__ void __launch_bounds__(BLOCK)
untile(const REAL *__restrict__ tiles, REAL *__restrict__ x, long long squares, long long rows, long long n,
       long long lanes) {
    __shared__ REAL part[32][33];
    for (long long number = blockIdx.x; number < squares; number += gridDim.x) {
        Square at = square_of(number, n, lanes);
        long long place = at.place + threadIdx.x, lane = at.lane + threadIdx.x;
        __syncthreads();
        for (int i = threadIdx.y; i < 32; i += 8)
            if (lane < lanes && at.place + i < n)
                part[i][threadIdx.x] = tiles[(at.tile * n + at.place + i) * lanes + lane];
        __syncthreads();
        for (int i = threadIdx.y; i < 32; i += 8) {
            long long row = at.tile * lanes + at.lane + i;
            if (at.lane + i < lanes && row < rows && place < n) x[row * n + place] = part[threadIdx.x][i];
        }
    }
}

// One lane a tile: tiles (rows', n) are rows already, and those past the last are 0.
extern "C" __global__ void __launch_bounds__(BLOCK)
copy_rows(const REAL *__restrict__ from, REAL *__restrict__ to, long long given, long long wanted) {
    EACH(i, wanted) to[i] = i < given ? from[i] : (REAL)0;
}
