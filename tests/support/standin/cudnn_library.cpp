// What the front end of cuDNN calls of libcudnn.so.9 for one convolution, computed on the CPU in host memory. Numbers
// of descriptors, attributes and notes are those of cudnn_graph.h. There are four engines for everything, best first;
// the first three carry a note. Compiled without a library of C++, and loaded by the real front end.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONVOLUTION = 1, ENGINE = 2, CONFIG = 3, HEURISTICS = 4, PLAN = 5 };
enum { OK = 0, BAD = 2000 };

struct Row {
    int64_t count, numbers[16];
    int64_t& operator[](int64_t index) {
        if (index < 0 || index >= count) abort();
        return numbers[index];
    }
};

struct Attributes {
    int count, names[16];
    Row rows[16];
    Row& operator[](int name) {
        for (int i = 0; i < count; ++i)
            if (names[i] == name) return rows[i];
        if (count == 16) abort();
        names[count] = name;
        return rows[count++];
    }
};

struct Descriptor {
    int type;
    Attributes values;  // whatever is set, widened to 64 bits
    int engine;
    Descriptor* graph;
    Descriptor* at(int name) { return (Descriptor*)values[name][0]; }
};

struct Memory {
    int64_t id;
    float* address;
};

static const int NOTES[][2] = {{4}, {0}, {0, 1}, {}};  // not deterministic; tensor cores; rounded
static const int64_t NOTED[] = {1, 1, 2, 0}, ENGINES = 4;
static const int64_t WORKSPACE = 4096;

static size_t width(int type) {
    switch (type) {
        case 0: case 3: case 5: case 6: case 15: return 8;  // handle, int64, double, pointer, descriptor
        default: return 4;
    }
}

static float* find(const Memory (&memory)[3], int64_t id) {
    for (const Memory& each : memory)
        if (each.id == id) return each.address;
    abort();
}

// Correlates or runs backwards, always in the order of the loops; role 10 forward, 11 weights, 12 input.
static void convolve(Descriptor* operation, const Memory (&memory)[3]) {
    const int kinds[3][4] = {{704, 703, 705, 702}, {716, 715, 717, 714}, {710, 709, 711, 708}};
    const int* names = kinds[operation->type - 10];
    Descriptor *X = operation->at(names[0]), *W = operation->at(names[1]), *Y = operation->at(names[2]);
    Descriptor* how = operation->at(names[3]);
    auto &xs = X->values[902], &ws = W->values[902], &ys = Y->values[902];
    auto &xt = X->values[903], &wt = W->values[903], &yt = Y->values[903];
    float *x = find(memory, X->values[906][0]), *w = find(memory, W->values[906][0]);
    float* y = find(memory, Y->values[906][0]);
    auto &steps = how->values[103], &dilation = how->values[102];
    Descriptor* target = operation->type == 10 ? Y : operation->type == 11 ? W : X;
    float* out = operation->type == 10 ? y : operation->type == 11 ? w : x;
    auto& sizes = target->values[902];
    memset(out, 0, sizes[0] * sizes[1] * sizes[2] * sizes[3] * sizeof(float));
    for (int64_t n = 0; n < ys[0]; ++n)
        for (int64_t f = 0; f < ys[1]; ++f)
            for (int64_t i = 0; i < ys[2]; ++i)
                for (int64_t j = 0; j < ys[3]; ++j)
                    for (int64_t c = 0; c < xs[1]; ++c)
                        for (int64_t u = 0; u < ws[2]; ++u)
                            for (int64_t v = 0; v < ws[3]; ++v) {
                                float& a = x[n * xt[0] + c * xt[1] + (i * steps[0] + u * dilation[0]) * xt[2] +
                                             (j * steps[1] + v * dilation[1]) * xt[3]];
                                float& b = w[f * wt[0] + c * wt[1] + u * wt[2] + v * wt[3]];
                                float& r = y[n * yt[0] + f * yt[1] + i * yt[2] + j * yt[3]];
                                if (operation->type == 10) r += a * b;
                                if (operation->type == 11) b += a * r;
                                if (operation->type == 12) a += b * r;
                            }
}

extern "C" {
size_t cudnnGetVersion() { return 91002; }
size_t cudnnGetCudartVersion() { return 12080; }
const char* cudnnGetErrorString(int status) { return status ? "the stand-in does not do this" : "fine"; }
void cudnnGetLastErrorString(char* text, size_t size) { if (size) text[0] = 0; }
int cudnnCreate(void** handle) { *handle = (void*)64; return OK; }
int cudnnDestroy(void*) { return OK; }
int cudnnSetStream(void*, void* stream) { printf("stream %ld\n", (long)stream); fflush(stdout); return OK; }
int cudnnGetStream(void*, void** stream) { *stream = nullptr; return OK; }
int cudnnBackendCreateDescriptor(int type, void** made) {
    Descriptor* descriptor = (Descriptor*)calloc(1, sizeof(Descriptor));
    descriptor->type = type;
    descriptor->engine = -1;
    *made = descriptor;
    return OK;
}
int cudnnBackendDestroyDescriptor(void*) { return OK; }  // a plan needs what it was made of
int cudnnBackendInitialize(void*) { return OK; }
int cudnnBackendFinalize(void*) { return OK; }

int cudnnBackendSetAttribute(void* given, int name, int type, int64_t count, const void* data) {
    Row& row = ((Descriptor*)given)->values[name];
    if (count > 16) return BAD;
    row.count = count;
    for (int64_t i = 0; i < count; ++i)
        row[i] = width(type) == 8 ? ((const int64_t*)data)[i] : (int64_t)((const int32_t*)data)[i];
    return OK;
}

int cudnnBackendGetAttribute(void* given, int name, int type, int64_t asked, int64_t* count, void* data) {
    Descriptor* from = (Descriptor*)given;
    int64_t there = 0;
    if (from->type == HEURISTICS && name == 202) {
        there = ENGINES;
        for (int64_t i = 0; data && i < there && i < asked; ++i) {
            Descriptor* config = ((Descriptor**)data)[i];
            config->engine = (int)i;
            config->graph = from->at(201);
        }
    } else if (from->type == CONFIG && name == 300) {
        there = 1;
        if (data) (*(Descriptor**)data)->engine = from->engine;
    } else if (from->type == ENGINE && name == 1303) {
        there = NOTED[from->engine];
        for (int64_t i = 0; data && i < there && i < asked; ++i) ((int32_t*)data)[i] = NOTES[from->engine][i];
    } else if (from->type == ENGINE && name == 1301) {
        there = 1;
        if (data) *(int64_t*)data = from->engine;
    } else if ((from->type == PLAN && name == 402) || (from->type == CONFIG && name == 303)) {
        there = 1;
        if (data) *(int64_t*)data = WORKSPACE;
    } else if (from->type == CONFIG && name == 304) {  // shared memory
        there = 1;
        if (data) *(int32_t*)data = 0;
    }
    if (count) *count = there;
    return OK;
}

int cudnnBackendExecute(void*, void* given_plan, void* given_pack) {
    Descriptor *plan = (Descriptor*)given_plan, *pack = (Descriptor*)given_pack;
    Descriptor* config = plan->at(401);
    Memory memory[3];
    Row &ids = pack->values[1000], &addresses = pack->values[1001];
    if (ids.count != 3 || addresses.count != 3) return BAD;
    for (int i = 0; i < 3; ++i) memory[i] = {ids[i], (float*)addresses[i]};
    memset((void*)pack->values[1003][0], 255, WORKSPACE);
    printf("engine %d\n", config->engine);
    fflush(stdout);
    convolve(config->graph->at(801), memory);
    return OK;
}
}
