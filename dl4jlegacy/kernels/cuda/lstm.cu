// One time step of an LSTM, all that is not a matrix product; a thread does one unit of one example.

// z (rows, 4n) holds inputs and what was fed back, and the gates i f o g afterwards; before, c, a, h (rows, n)
extern "C" __global__ void __launch_bounds__(BLOCK)
lstm_forward(REAL *__restrict__ z, const REAL *__restrict__ b, const REAL *__restrict__ peepholes,
             const REAL *__restrict__ before, REAL *__restrict__ c, REAL *__restrict__ a, REAL *__restrict__ h,
             const REAL *__restrict__ mask, long long size, long long n) {
    EACH(k, size) {
        long long row = row_of(k, n), unit = k - row * n;
        REAL *own = z + row * 4 * n + unit;
        REAL old = before[k], on = mask[row];
        REAL i = tanh(own[0] + b[unit]);
        REAL f = sigmoid(own[n] + b[n + unit] + peepholes[unit] * old);
        REAL g = sigmoid(own[3 * n] + b[3 * n + unit] + peepholes[2 * n + unit] * old);
        REAL now = f * old + g * i;
        REAL o = sigmoid(own[2 * n] + b[2 * n + unit] + peepholes[n + unit] * now);
        REAL out = tanh(now);
        own[0] = i;
        own[n] = f;
        own[2 * n] = o;
        own[3 * n] = g;
        a[k] = out;
        h[k] = o * out * on;
        c[k] = now * on;
    }
}

// z: gates -> their gradients. carried (rows, n) comes back from the next step through the recurrent weights; it is
// null at the last step, where dc (rows, n) begins at 0 too.
extern "C" __global__ void __launch_bounds__(BLOCK)
lstm_backward(REAL *__restrict__ z, const REAL *__restrict__ dy, const REAL *__restrict__ carried,
              REAL *__restrict__ dc, const REAL *__restrict__ peepholes, const REAL *__restrict__ before,
              const REAL *__restrict__ a, const REAL *__restrict__ mask, long long size, long long n) {
    EACH(k, size) {
        long long row = row_of(k, n), unit = k - row * n;
        REAL *own = z + row * 4 * n + unit;
        REAL i = own[0], f = own[n], o = own[2 * n], g = own[3 * n], out = a[k], on = mask[row];
        REAL dh = (carried ? dy[k] + carried[k] : dy[k]) * on;
        REAL d_o = dh * out * (o * (1 - o));
        REAL d = (carried ? dc[k] * on : (REAL)0) + (dh * o * (1 - out * out) + d_o * peepholes[n + unit]);
        REAL d_f = d * before[k] * (f * (1 - f)), d_g = d * i * (g * (1 - g));
        own[0] = d * g * (1 - i * i);
        own[n] = d_f;
        own[2 * n] = d_o;
        own[3 * n] = d_g;
        dc[k] = d * f + (d_f * peepholes[unit] + d_g * peepholes[2 * n + unit]);
    }
}
