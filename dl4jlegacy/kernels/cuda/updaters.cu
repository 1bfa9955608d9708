// Updaters: one pass each, every operation rounded as NumPy rounds it (compiled without fused multiply-add).

__device__ __forceinline__ REAL moment(REAL m, REAL g, REAL beta, REAL rest) {
    return m * beta + rest * g;
}

__device__ __forceinline__ REAL larger(REAL a, REAL b) {
    return a > b || a != a ? a : b;  // NaN stays, as in numpy.maximum
}

extern "C" __global__ void __launch_bounds__(BLOCK)
noop(REAL *__restrict__ params, const REAL *__restrict__ gradient, long long n) {
    EACH(i, n) params[i] -= gradient[i];
}

extern "C" __global__ void __launch_bounds__(BLOCK)
sgd(REAL *__restrict__ params, const REAL *__restrict__ gradient, long long n, SCALARS) {
    REAL lr = (REAL)SCALAR(0);
    EACH(i, n) params[i] -= gradient[i] * lr;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
nesterovs(REAL *__restrict__ params, const REAL *__restrict__ gradient, REAL *__restrict__ v, long long n, SCALARS) {
    REAL lr = (REAL)SCALAR(0), mu = (REAL)SCALAR(1), ahead = (REAL)(1 + SCALAR(1));
    EACH(i, n) {
        REAL old = v[i], now = old * mu - lr * gradient[i];
        v[i] = now;
        params[i] = params[i] - mu * old + ahead * now;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
adagrad(REAL *__restrict__ params, const REAL *__restrict__ gradient, REAL *__restrict__ h, long long n, SCALARS) {
    REAL lr = (REAL)SCALAR(0), eps = (REAL)SCALAR(1);
    EACH(i, n) {
        REAL g = gradient[i], now = h[i] + g * g;
        h[i] = now;
        params[i] -= g / (sqrt(now) + eps) * lr;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
rmsprop(REAL *__restrict__ params, const REAL *__restrict__ gradient, REAL *__restrict__ c, long long n, SCALARS) {
    REAL lr = (REAL)SCALAR(0), decay = (REAL)SCALAR(1), rest = (REAL)(1 - SCALAR(1)), eps = (REAL)SCALAR(2);
    EACH(i, n) {
        REAL g = gradient[i], now = c[i] * decay + rest * g * g;
        c[i] = now;
        params[i] -= lr * g / (sqrt(now) + eps);
    }
}

// The others' scalars: rate, beta1, beta2, eps.
#define RATE_AND_BETAS \
    REAL rate = (REAL)SCALAR(0), beta1 = (REAL)SCALAR(1), beta2 = (REAL)SCALAR(2); \
    REAL rest1 = (REAL)(1 - SCALAR(1)), rest2 = (REAL)(1 - SCALAR(2))

extern "C" __global__ void __launch_bounds__(BLOCK)
adam(REAL *__restrict__ params, const REAL *__restrict__ gradient, REAL *__restrict__ m, REAL *__restrict__ v,
     long long n, SCALARS) {
    RATE_AND_BETAS;
    REAL eps = (REAL)SCALAR(3);
    EACH(i, n) {
        REAL g = gradient[i], mean = moment(m[i], g, beta1, rest1), square = moment(v[i], g * g, beta2, rest2);
        m[i] = mean;
        v[i] = square;
        params[i] -= rate * mean / (sqrt(square) + eps);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
decay(REAL *__restrict__ params, long long n, SCALARS) {
    REAL share = (REAL)SCALAR(0);
    EACH(i, n) params[i] -= share * params[i];
}

extern "C" __global__ void __launch_bounds__(BLOCK)
adamax(REAL *__restrict__ params, const REAL *__restrict__ gradient, REAL *__restrict__ m, REAL *__restrict__ u,
       long long n, SCALARS) {
    REAL rate = (REAL)SCALAR(0), beta1 = (REAL)SCALAR(1), rest1 = (REAL)(1 - SCALAR(1)), beta2 = (REAL)SCALAR(2);
    EACH(i, n) {
        REAL g = gradient[i], mean = moment(m[i], g, beta1, rest1), most = larger(u[i] * beta2, fabs(g));
        most += (REAL)1e-32;
        m[i] = mean;
        u[i] = most;
        params[i] -= rate * mean / most;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
adadelta(REAL *__restrict__ params, const REAL *__restrict__ gradient, REAL *__restrict__ msg,
         REAL *__restrict__ msdx, long long n, SCALARS) {
    REAL rho = (REAL)SCALAR(0), rest = (REAL)(1 - SCALAR(0)), eps = (REAL)SCALAR(1);
    EACH(i, n) {
        REAL g = gradient[i], old = msdx[i], square = moment(msg[i], g * g, rho, rest);
        REAL up = g * sqrt(old + eps) / sqrt(square + eps);
        msg[i] = square;
        msdx[i] = moment(old, up * up, rho, rest);
        params[i] -= up;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
nadam(REAL *__restrict__ params, const REAL *__restrict__ gradient, REAL *__restrict__ m, REAL *__restrict__ v,
      long long n, SCALARS) {
    RATE_AND_BETAS;
    REAL eps = (REAL)SCALAR(3);
    EACH(i, n) {
        REAL g = gradient[i], mean = moment(m[i], g, beta1, rest1), square = moment(v[i], g * g, beta2, rest2);
        m[i] = mean;
        v[i] = square;
        params[i] -= rate * moment(mean, g, beta1, rest1) / (sqrt(square) + eps);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
amsgrad(REAL *__restrict__ params, const REAL *__restrict__ gradient, REAL *__restrict__ m, REAL *__restrict__ v,
        REAL *__restrict__ v_hat, long long n, SCALARS) {
    RATE_AND_BETAS;
    REAL eps = (REAL)SCALAR(3);
    EACH(i, n) {
        REAL g = gradient[i], mean = moment(m[i], g, beta1, rest1), square = moment(v[i], g * g, beta2, rest2);
        REAL most = larger(v_hat[i], square);
        m[i] = mean;
        v[i] = square;
        v_hat[i] = most;
        params[i] -= rate * mean / (sqrt(most) + eps);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK)
adabelief(REAL *__restrict__ params, const REAL *__restrict__ gradient, REAL *__restrict__ m, REAL *__restrict__ s,
          long long n, SCALARS) {
    RATE_AND_BETAS;
    REAL eps = (REAL)SCALAR(3);
    EACH(i, n) {
        REAL g = gradient[i], mean = moment(m[i], g, beta1, rest1), off = g - mean;
        REAL square = moment(s[i], off * off, beta2, rest2) + eps;
        m[i] = mean;
        s[i] = square;
        params[i] -= rate * mean / (sqrt(square) + eps);
    }
}
