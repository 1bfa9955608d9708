// Random numbers by counter: Philox4x32-10 (Salmon et al. 2011), the streams that kernels/philox.py defines. One thread
// computes one counter, whose four words are the elements k, k + 16, k + 32 and k + 48 of a block of 64.

struct Words {
    unsigned w[4];
};

__device__ __forceinline__ Words philox(unsigned long long counter, unsigned long long key) {
    unsigned x0 = (unsigned)counter, x1 = (unsigned)(counter >> 32), x2 = 0, x3 = 0;
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        unsigned high0 = __umulhi(0xD2511F53u, x0), low0 = 0xD2511F53u * x0;
        unsigned high1 = __umulhi(0xCD9E8D57u, x2), low1 = 0xCD9E8D57u * x2;
        x0 = high1 ^ x1 ^ k0;
        x1 = low1;
        x2 = high0 ^ x3 ^ k1;
        x3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{x0, x1, x2, x3}};
}

__device__ __forceinline__ float uniform_of(unsigned word) {
    return (float)(word >> 8) * 5.9604644775390625e-8f;  // 2^-24
}

// Calls use(k, u) for every element k < n with its uniform.
template <class Use>
__device__ __forceinline__ void draw(long long n, unsigned long long key, Use use) {
    EACH(counter, (n + 63) / 64 * 16) {
        Words words = philox((unsigned long long)counter, key);
        long long k = counter / 16 * 64 + counter % 16;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (k + 16 * i < n) use(k + 16 * i, uniform_of(words.w[i]));
    }
}

// Numbers belong to an example and its place, wherever images lie: they are counted as in tiles with `width` examples
// side by side, which is how a CPU has them. Images here lie `lanes` side by side, `items` values each.
#define TILES long long items, long long rows, long long lanes, long long width
#define PLACED(k) placed(k, items, rows, lanes, width)

// Where the k-th number belongs, -1 for one of an example that is not there; without tiles (items 0) at k.
__device__ __forceinline__ long long placed(long long k, TILES) {
    if (items == 0) return k;
    long long run = row_of(k, width), tile = row_of(run, items), row = tile * width + (k - run * width);
    long long own = row_of(row, lanes);
    return row < rows ? (own * items + (run - tile * items)) * lanes + (row - own * lanes) : -1;
}

extern "C" __global__ void __launch_bounds__(BLOCK) uniform(REAL *__restrict__ out, long long n, TILES, KEY) {
    draw(n, READ_KEY, [&](long long k, float u) {
        long long at = PLACED(k);
        if (at >= 0) out[at] = u;
    });
}

// Box and Muller 1958: of a block of 64 uniforms 32 are radii, 32 are angles.
extern "C" __global__ void __launch_bounds__(BLOCK) gaussian(REAL *__restrict__ out, long long n, KEY) {
    unsigned long long own = READ_KEY;
    EACH(counter, (n + 63) / 64 * 16) {
        Words words = philox((unsigned long long)counter, own);
        long long k = counter / 16 * 64 + counter % 16;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            REAL radius = sqrt(-2 * log(1 - (REAL)uniform_of(words.w[i])));
            REAL angle = (REAL)6.283185307179586 * (REAL)uniform_of(words.w[i + 2]);
            if (k + 16 * i < n) out[k + 16 * i] = radius * cos(angle);
            if (k + 16 * i + 32 < n) out[k + 16 * i + 32] = radius * sin(angle);
        }
    }
}

// z, probability, sample (size / n, n), which may be the same; b (n)
extern "C" __global__ void __launch_bounds__(BLOCK)
sigmoid_sample(const REAL *z, const REAL *__restrict__ b, REAL *probability, REAL *sample, long long size, long long n,
               KEY) {
    draw(size, READ_KEY, [&](long long k, float u) {
        REAL p = sigmoid(z[k] + b[column_of(k, n)]);
        probability[k] = p;
        sample[k] = u < p ? 1 : 0;
    });
}

// out may be x
extern "C" __global__ void __launch_bounds__(BLOCK)
dropout(const REAL *x, REAL *out, long long n, TILES, double retain, double scale, KEY) {
    float level = (float)retain;
    REAL factor = (REAL)scale;
    draw(n, READ_KEY, [&](long long k, float u) {
        long long at = PLACED(k);
        if (at >= 0) out[at] = u < level ? x[at] * factor : (REAL)0;
    });
}

extern "C" __global__ void __launch_bounds__(BLOCK)
corrupt(const REAL *x, REAL *out, long long n, double level, KEY) {
    float limit = (float)level;
    draw(n, READ_KEY, [&](long long k, float u) { out[k] = u < limit ? (REAL)0 : x[k]; });
}
