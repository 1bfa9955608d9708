// The gradient of a table of vectors: every class gets the sum of the rows that were looked up there.

// dz (rows, n), index (rows), gradient (n, classes), zeros before. The thread of a class's first row, for each column,
// sums all its rows, in their order; the others find an earlier row of their class and do nothing.
extern "C" __global__ void __launch_bounds__(BLOCK)
embedding_gradient(const REAL *__restrict__ dz, const long long *__restrict__ index, REAL *__restrict__ gradient,
                   long long rows, long long n, long long classes) {
    EACH(k, rows * n) {
        long long row = row_of(k, n), column = k - row * n, own = index[row], earlier = 0;
        while (earlier < row && index[earlier] != own) ++earlier;
        if (earlier < row) continue;
        REAL total = dz[k];
        for (long long later = row + 1; later < rows; ++later)
            if (index[later] == own) total += dz[later * n + column];
        gradient[column * classes + own] = total;
    }
}
