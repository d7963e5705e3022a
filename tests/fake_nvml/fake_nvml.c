// SPDX-FileCopyrightText: The mwatch authors
// SPDX-License-Identifier: Apache-2.0
//
// A libnvidia-ml.so.1 for machines without a GPU. It answers as the real one does, and as the
// words in the file that $FAKE_NVML names tell it to; without such a file there is no driver:
//   gpus=8                 how many there are (8)
//   NAME=CODE              that call fails with that code
//   hang=NAME              that call does not come back while the word is there
//   lost=3 reset=3 odd=3   that GPU answers 15, 16, 999 to whatever it is asked
//   closed=3               that GPU may not be opened (4)
//   event=N:GPU:KIND:DATA  an event, once for each set; N counts up
//   over                   nobody waits for an event any longer
//   tensor=4000            tensor activity in hundredths of a percent, of GPU 0
//   action=4 remaps=1 ecc=5 crc=100 util=50 watts=300   numbers of GPU 3
//   blackwell              links of that generation
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
typedef struct { int index; } Gpu;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { unsigned version; int sensor, celsius; } Temperature;
typedef struct { unsigned pid; u64 memory; unsigned gpu, compute; } Process;
typedef struct { Gpu *device; u64 kind, data; unsigned gpu, compute; } Event;
typedef struct { int last, registered[64]; u64 mask[64]; } EventSet;
typedef union { double d; unsigned u; unsigned long ul; u64 ull; long long ll; int i; } Value;
typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned kind, code;
    Value value;
} Field;
typedef struct { unsigned id, code; double value; const char *names[3]; } Metric;
typedef struct { long taken, value; } GpmSample;
typedef struct { unsigned version, count; GpmSample *first, *second; Metric metrics[]; } Metrics;
typedef struct { unsigned version, supported; } Support;

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, FORBIDDEN = 4, SMALL = 7, TIMEOUT = 10, MISMATCH = 25 };

static Gpu gpus[64];
static __thread char words[8192];

static int read_words(void) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 0;
    words[0] = ' ';
    size_t length = fread(words + 1, 1, sizeof words - 3, file);
    fclose(file);
    words[length + 1] = ' ';
    words[length + 2] = 0;
    for (char *each = words; *each; each++) if (*each == '\n') *each = ' ';
    return 1;
}

static int says(const char *format, ...) {
    char word[128];
    word[0] = ' ';
    va_list list;
    va_start(list, format);
    int length = vsnprintf(word + 1, sizeof word - 3, format, list);
    va_end(list);
    strcpy(word + 1 + length, " ");
    return read_words() && strstr(words, word) != NULL;
}

static long number(const char *key, long otherwise) {
    char word[128];
    snprintf(word, sizeof word, " %s=", key);
    const char *found = read_words() ? strstr(words, word) : NULL;
    return found ? atol(found + strlen(word)) : otherwise;
}

static int of_gpu(const char *key, Gpu *gpu, long usual) {
    return gpu->index == 3 ? number(key, usual) : usual;
}

static int enter(const char *name, Gpu *gpu) {
    if (!read_words()) return 1;
    while (says("hang=%s", name)) usleep(2000);
    if (gpu) {
        if (says("lost=%d", gpu->index)) return 15;
        if (says("reset=%d", gpu->index)) return 16;
        if (says("odd=%d", gpu->index)) return 999;
    }
    return number(name, OK);
}

#define ENTER(gpu) do { int code_ = enter(__func__, gpu); if (code_) return code_; } while (0)

int nvmlInit_v2(void) {
    if (!read_words()) return 9;
    ENTER(NULL);
    for (int i = 0; i < 64; i++) gpus[i].index = i;
    return OK;
}
int nvmlInitWithFlags(unsigned flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    return code == 3 ? "Not Supported" : code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost"
         : code == 16 ? "GPU requires reset" : code == 18 ? "Driver/library version mismatch"
         : "Unknown Error";
}
int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    ENTER(NULL);
    snprintf(text, length, "580.0");
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(NULL);
    *count = number("gpus", 8);
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    if (says("closed=%d", index)) return FORBIDDEN;
    ENTER(&gpus[index]);
    *gpu = &gpus[index];
    return OK;
}
int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned length) {
    ENTER(gpu);
    snprintf(text, length, "GPU-fake-%d", gpu->index);
    return OK;
}
int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned length) {
    ENTER(gpu);
    snprintf(text, length, "NVIDIA Fake");
    return OK;
}
int nvmlDeviceGetUtilizationRates(Gpu *gpu, Utilization *value) {
    ENTER(gpu);
    value->gpu = of_gpu("util", gpu, 90 + gpu->index);
    value->memory = 7;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, Memory2 *value) {
    ENTER(gpu);
    if (value->version != (sizeof *value | 2 << 24)) return MISMATCH;
    value->total = 140ull << 30;
    value->reserved = 1ull << 30;
    value->used = (60ull + gpu->index) << 30;
    value->free = value->total - value->reserved - value->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *value) {
    ENTER(gpu);
    value->total = 140ull << 30;
    value->used = (61ull + gpu->index) << 30;
    value->free = value->total - value->used;
    return OK;
}
int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *value) {
    ENTER(gpu);
    *value = of_gpu("watts", gpu, 600) * 1000 + gpu->index;
    return OK;
}
int nvmlDeviceGetEnforcedPowerLimit(Gpu *gpu, unsigned *value) {
    ENTER(gpu);
    *value = 700000;
    return OK;
}
int nvmlDeviceGetTemperatureV(Gpu *gpu, Temperature *value) {
    ENTER(gpu);
    if (value->version != (sizeof *value | 1 << 24)) return MISMATCH;
    value->celsius = 60 + gpu->index;
    return OK;
}
int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *value) {
    ENTER(gpu);
    *value = 50 + gpu->index + sensor;
    return OK;
}
int nvmlDeviceGetClockInfo(Gpu *gpu, int kind, unsigned *value) {
    ENTER(gpu);
    *value = kind == 1 ? 1980 : 2619;
    return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, u64 *bits) {
    ENTER(gpu);
    *bits = 0x4 | 0x40;
    return OK;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, u64 *bits) {
    ENTER(gpu);
    *bits = 0x8;
    return OK;
}
int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int kind, int counter, u64 *value) {
    ENTER(gpu);
    if (counter != 0) return INVALID;
    *value = kind == 0 ? 11 : of_gpu("ecc", gpu, 0);
    return OK;
}
int nvmlDeviceGetRemappedRows(Gpu *gpu, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    ENTER(gpu);
    *corrected = 2, *uncorrected = 1, *pending = 0, *failed = of_gpu("remaps", gpu, 0);
    return OK;
}
int nvmlDeviceGetPcieReplayCounter(Gpu *gpu, unsigned *value) {
    ENTER(gpu);
    *value = 5 + gpu->index;
    return OK;
}
int nvmlDeviceGetPcieThroughput(void) { abort(); }
int nvmlDeviceGetTotalEnergyConsumption(void) { abort(); }
int nvmlDeviceGetComputeRunningProcesses_v2(Gpu *gpu, unsigned *count, Process *found) {
    ENTER(gpu);
    unsigned room = *count;
    *count = 1;
    if (room < 1 || !found) return SMALL;
    found[0] = (Process){1000 + gpu->index, 1 << 20, ~0u, ~0u};
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *found) {
    ENTER(gpu);
    return nvmlDeviceGetComputeRunningProcesses_v2(gpu, count, found);
}

static void fill(Gpu *gpu, Field *field) {
    unsigned id = field->id, link = field->scope;
    int is_new = says("blackwell");
    field->code = OK;
    field->kind = 3;
    if (id >= 74 && id <= 75) field->value.ull = id * 1000000000ull;
    else if (id >= 269 && id <= 271) field->value.ull = id * 100000000ull;
    else if (id == 91) field->kind = 1, field->value.u = 18;
    else if (id == 230) field->kind = 1, field->value.u = of_gpu("action", gpu, 0);
    else if (id >= 161 && id <= 163 && link < 12 && !is_new)
        field->value.ull = id == 163 ? (u64)of_gpu("crc", gpu, 3) : id - 160;
    else if (id >= 206 && id <= 221 && link < 18 && is_new) field->value.ull = 1;
    else field->code = UNSUPPORTED;
    field->code = field->code ? field->code : (unsigned)number("field", OK);
}
int nvmlDeviceGetFieldValues(Gpu *gpu, int count, Field *fields) {
    ENTER(gpu);
    for (int i = 0; i < count; i++) fill(gpu, &fields[i]);
    return OK;
}

int nvmlGpmQueryDeviceSupport(Gpu *gpu, Support *value) {
    ENTER(gpu);
    if (value->version != 1) return MISMATCH;
    value->supported = !says("ampere");
    return OK;
}
int nvmlGpmSampleAlloc(GpmSample **sample) {
    ENTER(NULL);
    *sample = calloc(1, sizeof **sample);
    return OK;
}
int nvmlGpmSampleFree(GpmSample *sample) {
    free(sample);
    return OK;
}
int nvmlGpmSampleGet(Gpu *gpu, GpmSample *sample) {
    static long taken;
    ENTER(gpu);
    sample->taken = __atomic_add_fetch(&taken, 1, __ATOMIC_SEQ_CST);
    sample->value = number("tensor", 4000) + gpu->index;
    return OK;
}
int nvmlGpmMetricsGet(Metrics *request) {
    ENTER(NULL);
    if (request->version != 1) return MISMATCH;
    if (!request->first->taken || request->first->taken >= request->second->taken) return INVALID;
    for (unsigned i = 0; i < request->count; i++) {
        request->metrics[i].code = request->metrics[i].id == 5 ? OK : UNSUPPORTED;
        request->metrics[i].value = says("nan") ? NAN : request->second->value / 100.0;
    }
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(Gpu *gpu, u64 *mask) {
    ENTER(gpu);
    *mask = 0xff9f;
    return OK;
}
int nvmlEventSetCreate(EventSet **set) {
    ENTER(NULL);
    *set = calloc(1, sizeof **set);
    return OK;
}
int nvmlEventSetFree(EventSet *set) {
    free(set);
    return OK;
}
int nvmlDeviceRegisterEvents(Gpu *gpu, u64 mask, EventSet *set) {
    ENTER(gpu);
    if (mask & ~0xff9full) return UNSUPPORTED;
    set->registered[gpu->index] = 1;
    set->mask[gpu->index] = mask;
    return OK;
}
static int next_event(EventSet *set, Event *event) {
    if (!read_words()) return 0;
    for (char *at = words; (at = strstr(at, " event=")) != NULL; at++) {
        int count, index;
        u64 kind, data;
        if (sscanf(at, " event=%d:%d:%llx:%llu", &count, &index, &kind, &data) != 4) continue;
        if (count <= set->last) continue;
        set->last = count;
        if (!set->registered[index] || !(set->mask[index] & kind)) continue;
        *event = (Event){&gpus[index], kind, data, ~0u, ~0u};
        return 1;
    }
    return 0;
}
int nvmlEventSetWait_v2(EventSet *set, Event *event, unsigned milliseconds) {
    for (unsigned waited = 0; waited < milliseconds; waited += 5) {
        ENTER(NULL);
        if (next_event(set, event)) return OK;
        if (says("over")) break;
        usleep(5000);
    }
    return TIMEOUT;
}
