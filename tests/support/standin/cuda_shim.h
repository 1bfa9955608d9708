// What the CUDA C of our kernels needs on a CPU: one launch runs its blocks one after the other, the threads of a block
// as plain calls, or, where the kernel has barriers, as fibres that take turns between them.
#pragma once
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

// No library of C++ is linked; this is what destructors at the end of a thread need of one.
extern "C" int __cxa_thread_atexit_impl(void (*)(void*), void*, void*);
extern "C" __attribute__((visibility("hidden"))) int __cxa_thread_atexit(void (*end)(void*), void* of, void* library) {
    return __cxa_thread_atexit_impl(end, of, library);
}

#define __global__ static
#define __device__ static
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static thread_local
#define __constant__ static const
#define __syncthreads() shim_barrier(__COUNTER__ + 1)

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
static thread_local char* shim_dynamic;

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(16) double4 { double x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline double2 make_double2(double x, double y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

#define SHIM_EXTREMES(T) \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
SHIM_EXTREMES(int)
SHIM_EXTREMES(unsigned)
SHIM_EXTREMES(long)
SHIM_EXTREMES(unsigned long)
SHIM_EXTREMES(long long)
SHIM_EXTREMES(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
#define rsqrt shim_rsqrt  // newer C libraries have functions of these names
#define rsqrtf shim_rsqrtf
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
template <class T> static inline T __ldg(const T* at) { return *at; }

// -- barriers --------------------------------------------------------------------------------------------------------
struct ShimFibre {
    ucontext_t context;
    jmp_buf at;
    char* stack;
    bool begun, done;
    int barrier;  // which barrier it waits at, counted through the source
};
static const size_t SHIM_STACK = 1 << 16;
static thread_local struct ShimFibres {
    ShimFibre* all[1024] = {};
    jmp_buf scheduler;
    ShimFibre* now = nullptr;
    void (*kernel)(void*) = nullptr;
    void* arguments = nullptr;
    ~ShimFibres() {
        for (ShimFibre* f : all)
            if (f) {
                munmap(f->stack, SHIM_STACK);
                free(f);
            }
    }
} shim;

static __noinline__ void shim_leave() {
    if (!_setjmp(shim.now->at)) _longjmp(shim.scheduler, 1);
}

[[maybe_unused]] static __noinline__ void shim_barrier(int barrier) {
    if (!shim.now) abort();  // the kernel was taken for one without barriers
    shim.now->barrier = barrier;
    shim_leave();
}

static void shim_main() {
    for (;;) {
        shim.kernel(shim.arguments);
        shim.now->done = true;
        shim_leave();
    }
}

static __noinline__ void shim_enter(int t) {
    ShimFibre*& f = shim.all[t];
    if (!f) {
        f = (ShimFibre*)calloc(1, sizeof(ShimFibre));
        f->stack = (char*)mmap(nullptr, SHIM_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    shim.now = f;
    f->barrier = 0;
    threadIdx.x = t % blockDim.x;
    threadIdx.y = t / blockDim.x % blockDim.y;
    threadIdx.z = t / blockDim.x / blockDim.y;
    if (_setjmp(shim.scheduler)) return;
    if (f->begun) _longjmp(f->at, 1);
    f->begun = true;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = SHIM_STACK;
    f->context.uc_link = nullptr;
    makecontext(&f->context, shim_main, 0);
    setcontext(&f->context);
}

// One block; between two barriers the threads run in ascending or descending order by turns, so that a missing barrier
// shows. Returns 0, or the number of a barrier that not every thread of the block came to.
static int shim_block(int threads, int turn) {
    for (int t = 0; t < threads; ++t)
        if (shim.all[t]) shim.all[t]->done = false;
    for (;; ++turn) {
        for (int i = 0; i < threads; ++i) shim_enter(turn % 2 ? threads - 1 - i : i);
        int first = shim.all[0]->done ? -1 : shim.all[0]->barrier, barrier = 0;
        for (int t = 0; t < threads; ++t) {
            int here = shim.all[t]->done ? -1 : shim.all[t]->barrier;
            if (here != first) barrier = here > 0 ? here : first;
        }
        if (barrier) return barrier;
        if (first == -1) return 0;
    }
}

struct ShimLaunch {
    unsigned grid[3], block[3];
    unsigned shared;
    int turn;
};

// Returns 0, the number of a barrier that only some threads reached, or -1: written past the dynamic shared memory.
[[maybe_unused]] static int shim_launch(const ShimLaunch* l, void (*kernel)(void*), void* arguments, bool barriers) {
    const unsigned guard = 256;
    gridDim = {l->grid[0], l->grid[1], l->grid[2]};
    blockDim = {l->block[0], l->block[1], l->block[2]};
    char* dynamic = (char*)aligned_alloc(256, (l->shared + 255) / 256 * 256 + 256 + guard);
    shim_dynamic = dynamic;
    shim.kernel = kernel;
    shim.arguments = arguments;
    int threads = blockDim.x * blockDim.y * blockDim.z, wrong = 0;
    int turn = l->turn;
    for (unsigned z = 0; z < gridDim.z && !wrong; ++z)
        for (unsigned y = 0; y < gridDim.y && !wrong; ++y)
            for (unsigned x = 0; x < gridDim.x && !wrong; ++x, ++turn) {
                blockIdx = {x, y, z};
                if (barriers) {
                    memset(dynamic, 0xFF, l->shared + guard);
                    wrong = shim_block(threads, turn);
                    for (unsigned i = 0; i < guard && !wrong; ++i)
                        if (dynamic[l->shared + i] != (char)0xFF) wrong = -1;
                    continue;
                }
                shim.now = nullptr;
                for (threadIdx.z = 0; threadIdx.z < blockDim.z; ++threadIdx.z)
                    for (threadIdx.y = 0; threadIdx.y < blockDim.y; ++threadIdx.y)
                        for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) kernel(arguments);
            }
    free(dynamic);
    for (int t = 0; t < 1024 && wrong; ++t)
        if (shim.all[t]) shim.all[t]->begun = false;  // some wait in a launch that is over
    return wrong;
}
