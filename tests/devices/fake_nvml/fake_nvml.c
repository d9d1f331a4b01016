/* A fake libnvidia-ml.so.1: the calls that the harness makes, answered from environment variables instead of a driver.
 *
 * Layouts and numbers are those of NVML's public interface, so the real pynvml loads this library. The variables are
 * read at each call; lists are indices separated by commas:
 *
 *   FAKE_NVML_GPUS    the number of GPUs, 0 to 64; 8 unless set
 *   FAKE_NVML_MIG     these have MIG mode on
 *   FAKE_NVML_SLICES  the number of instances of each of those, 0 to 6; 2 unless set
 *   FAKE_NVML_LOST    these answer "GPU is lost" to all queries except for their UUID
 *   FAKE_NVML_GONE    these answer "GPU is lost" to a request for their handle
 *   FAKE_NVML_LOST_SLICES, FAKE_NVML_GONE_SLICES  the same for instances, by their slot, which counts from 1
 *   FAKE_NVML_NO_ECC  these cannot switch ECC; of the others, those with an even index have ECC on
 *   FAKE_NVML_OTHER   these are another model, with less memory
 *   FAKE_NVML_NAME    the model's name
 *   FAKE_NVML_UUID    the UUID of every GPU; with "none", the query of the UUID is not supported
 *   FAKE_NVML_INIT    the status that nvmlInitWithFlags returns
 *   FAKE_NVML_COUNT   the status that nvmlDeviceGetCount_v2 returns
 *   FAKE_NVML_HANG    the name of a call that does not return
 *   FAKE_NVML_LOG     a file to which each call appends its name and a newline
 *   FAKE_NVML_NO_EVENTS  these support no events
 *   FAKE_NVML_STATE   a file with the state of the GPUs. It is read at each call, so it may change while a process
 *                     runs. A line is "<index> <word> <number>"; the last of several counts. Words:
 *     ecc_corrected ecc_uncorrected ecc_aggregate   ECC counts: volatile, volatile, uncorrected since manufacture
 *     rows_correctable rows_uncorrectable rows_pending rows_failed   remapped rows
 *     pages_pending     whether a page will be retired, on the other model, which remaps no rows
 *     throttle          the mask of reasons for slow clocks
 *     temperature       in degrees Celsius; 40 unless set
 *     replays           the counter of PCIe replays
 *     graphics_clock memory_clock power_limit   the settings, in MHz and milliwatts; not supported unless given here
 *     power_default graphics_clock_default   the defaults of two of these; not supported unless given here
 *     recovery          the recovery action that the driver asks for
 *     sram_exceeded sram_uncorrected pages_retired   errors of on-chip memory, retired pages on the other model
 *     pcie_generation pcie_generation_max pcie_width pcie_width_max   the link; 5 and 16 unless set
 *     nvlinks nvlinks_down nvlink_replays nvlink_recoveries   active links, links that are down, errors of each
 *     fabric_state fabric_status fabric_health   the fabric; not supported unless its state is given
 *     temperature_limit where the clocks slow down; 90 unless set
 *     compute_mode persistence performance_state   0, 1 and 0 unless set
 *     ecc_pending mig_pending   the pending modes, if not the present ones
 *     memory_used       MiB in use beyond the reserved memory; 4 unless set
 *     lost              with 1, the GPU is lost: it answers no query except for its UUID
 *     lost_from         the GPU is lost from this query about it on, counted from 1 in each process
 *     crash_from        the process is ended by SIGSEGV at this query about it
 *     process           the id of a process that uses it
 *     process_until     the number of times that the process is listed; later it is not
 *     <name of a call>  the status that this call returns for this GPU; with 997 it does not return
 *     xid               an Xid of the GPU; such lines add up. "<index> xid <number> <instance>" is one of a GPU
 *                       instance, by the number of its slot
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { NEVER = 997 };
enum { CORRECTED = 0, UNCORRECTED = 1, VOLATILE = 0, AGGREGATE = 1, XID_EVENTS = 8 };
enum { MOST_GPUS = 64, MOST_SLICES = 7, WHOLE = -1 };

typedef int Status;
typedef struct { int gpu, slice; } Entry;
typedef Entry *Device;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;
typedef struct {
    Device device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} Event;
typedef struct { int watched[MOST_GPUS], told; } *EventSet;
typedef struct { unsigned version, sensor; int temperature; } Temperature;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    Status status;
    unsigned long long value;
} FieldValue;
typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } SramErrors;
typedef struct { unsigned version; unsigned char cluster[16]; Status status; unsigned clique, state, health; } Fabric;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } Process;

static int users;
static long questions[MOST_GPUS];
static Entry whole[MOST_GPUS];
static Entry slices[MOST_GPUS][MOST_SLICES];

static int number(const char *variable, int otherwise, int most) {
    const char *text = getenv(variable);
    int value = text ? atoi(text) : otherwise;
    return value < 0 ? 0 : value > most ? most : value;
}

static int listed(const char *variable, int gpu) {
    const char *text = getenv(variable);
    while (text && *text) {
        char *end;
        long value = strtol(text, &end, 10);
        if (end == text) break;
        if (value == gpu) return 1;
        text = *end ? end + 1 : end;
    }
    return 0;
}

/* The state of a GPU in the state file. */
static long state(int gpu, const char *word, long otherwise) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], found[128];
    long value;
    for (int index; file && fgets(line, sizeof line, file);)
        if (sscanf(line, "%d %127s %ld", &index, found, &value) == 3 && index == gpu && !strcmp(found, word))
            otherwise = value;
    if (file) fclose(file);
    return otherwise;
}

/* The number of Xids so far, but at most `most`, and the data of the last one. */
static int xids(int most, int *gpu, long *xid, unsigned *instance) {
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    int seen = 0, index;
    long number, within;
    while (file && seen < most && fgets(line, sizeof line, file)) {
        int fields = sscanf(line, "%d xid %ld %ld", &index, &number, &within);
        if (fields < 2) continue;
        seen++;
        *gpu = index;
        *xid = number;
        *instance = fields == 3 ? (unsigned)within : UINT_MAX;
    }
    if (file) fclose(file);
    return seen;
}

static void hang(void) {
    for (;;) pause();
}

static void record(const char *call) {
    const char *path = getenv("FAKE_NVML_LOG"), *hanging = getenv("FAKE_NVML_HANG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%s\n", call);
        fclose(file);
    }
    if (hanging && !strcmp(hanging, call)) hang();
}

static Status ready(const char *call) {
    record(call);
    return users ? SUCCESS : UNINITIALIZED;
}

/* The prologue of each query about a device. */
static Status ask(const char *call, Device device) {
    Status status = ready(call);
    if (status) return status;
    if (!device) return INVALID_ARGUMENT;
    if (listed("FAKE_NVML_LOST_SLICES", device->slice)) return GPU_IS_LOST;
    if (++questions[device->gpu] >= state(device->gpu, "crash_from", LONG_MAX)) raise(SIGSEGV);
    if (questions[device->gpu] >= state(device->gpu, "lost_from", LONG_MAX)) return GPU_IS_LOST;
    if (listed("FAKE_NVML_LOST", device->gpu) || state(device->gpu, "lost", 0)) return GPU_IS_LOST;
    status = (Status)state(device->gpu, call, SUCCESS);
    if (status == NEVER) hang();
    return status;
}

/* The same, for counts that need ECC. A GPU that is divided into instances only has the permanent ones. */
static Status ask_ecc(const char *call, Device device, unsigned counter) {
    Status status = ask(call, device);
    if (status) return status;
    if (listed("FAKE_NVML_NO_ECC", device->gpu) || device->gpu % 2) return NOT_SUPPORTED;
    return counter == VOLATILE && listed("FAKE_NVML_MIG", device->gpu) ? NOT_SUPPORTED : SUCCESS;
}

static const char *model(int gpu) {
    const char *name = getenv("FAKE_NVML_NAME");
    if (listed("FAKE_NVML_OTHER", gpu)) return "Fake GPU 24GB";
    return name ? name : "Fake GPU 80GB";
}

static unsigned long long memory_of(int gpu) {
    return (listed("FAKE_NVML_OTHER", gpu) ? 24ULL : 80ULL) << 30;
}

Status nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    record(__func__);
    Status status = number("FAKE_NVML_INIT", SUCCESS, 999);
    if (status) return status;
    users++;
    for (int gpu = 0; gpu < MOST_GPUS; gpu++) {
        whole[gpu] = (Entry){gpu, WHOLE};
        for (int slice = 0; slice < MOST_SLICES; slice++) slices[gpu][slice] = (Entry){gpu, slice};
    }
    return SUCCESS;
}

Status nvmlShutdown(void) {
    Status status = ready(__func__);
    if (!status) users--;
    return status;
}

const char *nvmlErrorString(Status status) {
    record(__func__);
    return status == 998 ? "Fake\x1b[31m error" : "Unlisted error";
}

Status nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "570.86.15");
    return ready(__func__);
}

Status nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 12080;
    return ready(__func__);
}

Status nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)number("FAKE_NVML_GPUS", 8, MOST_GPUS);
    Status status = ready(__func__);
    return status ? status : number("FAKE_NVML_COUNT", SUCCESS, 999);
}

Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    Status status = ready(__func__);
    if (status) return status;
    if (index >= (unsigned)number("FAKE_NVML_GPUS", 8, MOST_GPUS)) return INVALID_ARGUMENT;
    *device = &whole[index];
    return listed("FAKE_NVML_GONE", (int)index) ? GPU_IS_LOST : SUCCESS;
}

Status nvmlDeviceGetUUID(Device device, char *text, unsigned length) {
    const char *given = getenv("FAKE_NVML_UUID");
    Status status = ready(__func__);
    if (status) return status;
    if (device->slice != WHOLE)
        snprintf(text, length, "MIG-%x%x%x%x0000-0000-4000-8000-00000000000%d", device->gpu, device->gpu, device->gpu,
                 device->gpu, device->slice);
    else if (given && !strcmp(given, "none"))
        return NOT_SUPPORTED;
    else if (given)
        snprintf(text, length, "%s", given);
    else
        snprintf(text, length, "GPU-%x%x%x%x0000-0000-4000-8000-000000000000", device->gpu, device->gpu, device->gpu,
                 device->gpu);
    return SUCCESS;
}

Status nvmlDeviceGetName(Device device, char *text, unsigned length) {
    Status status = ask(__func__, device);
    if (status) return status;
    snprintf(text, length, "%s%s", model(device->gpu), device->slice == WHOLE ? "" : " MIG 1g.10gb");
    return SUCCESS;
}

Status nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
    Status status = ask(__func__, device);
    if (status) return status;
    memory->total = device->slice == WHOLE ? memory_of(device->gpu) : 10ULL << 30;
    memory->used = 1ULL << 30;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

Status nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    *major = 9;
    *minor = 0;
    return ask(__func__, device);
}

Status nvmlDeviceGetPciInfo_v3(Device device, Pci *pci) {
    Status status = ask(__func__, device);
    if (status) return status;
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x10u + (unsigned)device->gpu;
    snprintf(pci->legacy_bus_id, sizeof pci->legacy_bus_id, "0000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return SUCCESS;
}

Status nvmlDeviceGetEccMode(Device device, unsigned *current, unsigned *pending) {
    Status status = ask(__func__, device);
    if (status) return status;
    if (listed("FAKE_NVML_NO_ECC", device->gpu)) return NOT_SUPPORTED;
    *current = device->gpu % 2 == 0;
    *pending = (unsigned)state(device->gpu, "ecc_pending", *current);
    return SUCCESS;
}

/* Application clocks in MHz, 0 graphics and 2 memory; and the power limit. Not supported unless they are set. */
Status nvmlDeviceGetApplicationsClock(Device device, unsigned domain, unsigned *mhz) {
    Status status = ask(__func__, device);
    if (status) return status;
    *mhz = (unsigned)state(device->gpu, domain == 0 ? "graphics_clock" : "memory_clock", 0);
    return *mhz ? SUCCESS : NOT_SUPPORTED;
}

Status nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *milliwatts) {
    Status status = ask(__func__, device);
    if (status) return status;
    *milliwatts = (unsigned)state(device->gpu, "power_limit", 0);
    return *milliwatts ? SUCCESS : NOT_SUPPORTED;
}

Status nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    Status status = ask(__func__, device);
    if (status) return status;
    if (listed("FAKE_NVML_OTHER", device->gpu)) return NOT_SUPPORTED;
    *current = (unsigned)listed("FAKE_NVML_MIG", device->gpu);
    *pending = (unsigned)state(device->gpu, "mig_pending", *current);
    return SUCCESS;
}

Status nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count) {
    *count = MOST_SLICES;
    return ask(__func__, device);
}

Status nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *instance) {
    Status status = ask(__func__, device);
    if (status) return status;
    /* The first slot is empty, as after its instance was destroyed. */
    if (index == 0 || index > (unsigned)number("FAKE_NVML_SLICES", 2, MOST_SLICES - 1)) return NOT_FOUND;
    *instance = &slices[device->gpu][index];
    return listed("FAKE_NVML_GONE_SLICES", (int)index) ? GPU_IS_LOST : SUCCESS;
}

Status nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    Status status = ready(__func__);
    if (status) return status;
    for (int gpu = 0; gpu < number("FAKE_NVML_GPUS", 8, MOST_GPUS); gpu++) {
        char name[96];
        *device = &whole[gpu];
        if (!nvmlDeviceGetUUID(*device, name, sizeof name) && !strcmp(name, uuid))
            return listed("FAKE_NVML_GONE", gpu) || state(gpu, "lost", 0) ? GPU_IS_LOST : SUCCESS;
        for (int slice = 1; listed("FAKE_NVML_MIG", gpu) && slice < MOST_SLICES; slice++) {
            *device = &slices[gpu][slice];
            if (!nvmlDeviceGetUUID(*device, name, sizeof name) && !strcmp(name, uuid)) return SUCCESS;
        }
    }
    return NOT_FOUND;
}

Status nvmlDeviceGetGpuInstanceId(Device device, unsigned *instance) {
    Status status = ask(__func__, device);
    if (status) return status;
    *instance = (unsigned)device->slice;
    return device->slice == WHOLE ? INVALID_ARGUMENT : SUCCESS;
}

Status nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, Process *processes) {
    Status status = ask(__func__, device);
    if (status) return status;
    static long told[MOST_GPUS];
    long pid = state(device->gpu, "process", 0), until = state(device->gpu, "process_until", LONG_MAX);
    unsigned room = *count;
    *count = pid && told[device->gpu] < until;
    if (*count > room) return INSUFFICIENT_SIZE;
    if (!*count) return SUCCESS;
    told[device->gpu]++;
    *processes = (Process){(unsigned)pid, 1ULL << 20, UINT_MAX, UINT_MAX};
    return SUCCESS;
}

Status nvmlDeviceGetTotalEccErrors(Device device, unsigned type, unsigned counter, unsigned long long *count) {
    Status status = ask_ecc(__func__, device, counter);
    if (status) return status;
    if (type == CORRECTED)
        *count = counter == VOLATILE ? (unsigned long long)state(device->gpu, "ecc_corrected", 0) : 0;
    else
        *count = (unsigned long long)state(device->gpu, counter == VOLATILE ? "ecc_uncorrected" : "ecc_aggregate", 0);
    return SUCCESS;
}

Status nvmlDeviceGetRemappedRows(Device device, unsigned *correctable, unsigned *uncorrectable, unsigned *pending,
                                 unsigned *failed) {
    Status status = ask(__func__, device);
    if (status) return status;
    if (listed("FAKE_NVML_OTHER", device->gpu) || listed("FAKE_NVML_MIG", device->gpu)) return NOT_SUPPORTED;
    *correctable = (unsigned)state(device->gpu, "rows_correctable", 0);
    *uncorrectable = (unsigned)state(device->gpu, "rows_uncorrectable", 0);
    *pending = (unsigned)state(device->gpu, "rows_pending", 0);
    *failed = (unsigned)state(device->gpu, "rows_failed", 0);
    return SUCCESS;
}

Status nvmlDeviceGetRetiredPagesPendingStatus(Device device, unsigned *pending) {
    Status status = ask(__func__, device);
    if (status) return status;
    *pending = (unsigned)state(device->gpu, "pages_pending", 0);
    return listed("FAKE_NVML_OTHER", device->gpu) ? SUCCESS : NOT_SUPPORTED;
}

static Status throttle(const char *call, Device device, unsigned long long *reasons) {
    Status status = ask(call, device);
    if (!status) *reasons = (unsigned long long)state(device->gpu, "throttle", 0);
    return status;
}

Status nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *reasons) {
    return throttle(__func__, device, reasons);
}

Status nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long *reasons) {
    return throttle(__func__, device, reasons);
}

Status nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *temperature) {
    Status status = ask(__func__, device);
    if (!status) *temperature = (unsigned)state(device->gpu, "temperature", 40);
    return sensor ? INVALID_ARGUMENT : status;
}

Status nvmlDeviceGetTemperatureV(Device device, Temperature *answer) {
    Status status = ask(__func__, device);
    if (!status) answer->temperature = (int)state(device->gpu, "temperature", 40);
    return answer->sensor ? INVALID_ARGUMENT : status;
}

Status nvmlDeviceGetPcieReplayCounter(Device device, unsigned *count) {
    Status status = ask(__func__, device);
    if (!status) *count = (unsigned)state(device->gpu, "replays", 0);
    return status;
}

Status nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long *types) {
    Status status = ask(__func__, device);
    *types = listed("FAKE_NVML_NO_EVENTS", device->gpu) ? 0 : XID_EVENTS;
    return status;
}

Status nvmlEventSetCreate(EventSet *set) {
    Status status = ready(__func__);
    int gpu;
    long xid;
    unsigned instance;
    if (status) return status;
    *set = calloc(1, sizeof **set);
    (*set)->told = xids(INT_MAX, &gpu, &xid, &instance);
    return SUCCESS;
}

Status nvmlDeviceRegisterEvents(Device device, unsigned long long types, EventSet set) {
    Status status = ask(__func__, device);
    if (status) return status;
    if (types != XID_EVENTS || device->slice != WHOLE || listed("FAKE_NVML_NO_EVENTS", device->gpu))
        return NOT_SUPPORTED;
    set->watched[device->gpu] = 1;
    return SUCCESS;
}

/* Never waits: without an event it immediately returns a time-out. */
Status nvmlEventSetWait_v2(EventSet set, Event *event, unsigned timeout) {
    Status status = ready(__func__);
    int gpu;
    long xid;
    unsigned instance;
    (void)timeout;
    while (!status && xids(set->told + 1, &gpu, &xid, &instance) > set->told) {
        set->told++;
        if (gpu < 0 || gpu >= MOST_GPUS || !set->watched[gpu]) continue;
        *event = (Event){&whole[gpu], XID_EVENTS, (unsigned long long)xid, instance, UINT_MAX};
        return SUCCESS;
    }
    return status ? status : TIMEOUT;
}

Status nvmlEventSetFree(EventSet set) {
    free(set);
    return ready(__func__);
}

/* Calls that return one number of the state. */
#define NUMBER(call, word, otherwise)                                  \
    Status call(Device device, unsigned *value) {                      \
        Status status = ask(__func__, device);                         \
        if (!status) *value = (unsigned)state(device->gpu, word, otherwise); \
        return status;                                                 \
    }
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", 16)
NUMBER(nvmlDeviceGetComputeMode, "compute_mode", 0)
NUMBER(nvmlDeviceGetPersistenceMode, "persistence", 1)
NUMBER(nvmlDeviceGetPerformanceState, "performance_state", 0)
NUMBER(nvmlDeviceGetPowerUsage, "power", 100000)

Status nvmlDeviceGetPowerManagementDefaultLimit(Device device, unsigned *milliwatts) {
    Status status = ask(__func__, device);
    if (status) return status;
    *milliwatts = (unsigned)state(device->gpu, "power_default", 0);
    return *milliwatts ? SUCCESS : NOT_SUPPORTED;
}

Status nvmlDeviceGetDefaultApplicationsClock(Device device, unsigned domain, unsigned *mhz) {
    Status status = ask(__func__, device);
    if (status) return status;
    *mhz = domain == 0 ? (unsigned)state(device->gpu, "graphics_clock_default", 0) : 0;
    return *mhz ? SUCCESS : NOT_SUPPORTED;
}

static Status megahertz(const char *call, Device device, unsigned *mhz) {
    *mhz = 1980;
    return ask(call, device);
}

Status nvmlDeviceGetClockInfo(Device device, unsigned domain, unsigned *mhz) {
    (void)domain;
    return megahertz(__func__, device, mhz);
}

Status nvmlDeviceGetMaxClockInfo(Device device, unsigned domain, unsigned *mhz) {
    (void)domain;
    return megahertz(__func__, device, mhz);
}

Status nvmlDeviceGetTemperatureThreshold(Device device, unsigned threshold, unsigned *degrees) {
    Status status = ask(__func__, device);
    if (!status) *degrees = (unsigned)state(device->gpu, "temperature_limit", 90);
    return threshold == 1 ? status : NOT_SUPPORTED;
}

Status nvmlDeviceGetMemoryInfo_v2(Device device, Memory2 *memory) {
    Status status = ask(__func__, device);
    if (status) return status;
    memory->total = memory_of(device->gpu);
    memory->reserved = 512ULL << 20;
    memory->used = (unsigned long long)state(device->gpu, "memory_used", 4) << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

Status nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *count, Process *processes) {
    (void)processes;
    *count = 0;
    return ask(__func__, device);
}

/* Field 230 is the recovery action; drivers do not know every field. */
Status nvmlDeviceGetFieldValues(Device device, int count, FieldValue *values) {
    Status status = ask(__func__, device);
    for (int index = 0; !status && index < count; index++) {
        values[index].status = values[index].field == 230 ? SUCCESS : INVALID_ARGUMENT;
        values[index].value = (unsigned long long)state(device->gpu, "recovery", 0);
    }
    return status;
}

Status nvmlDeviceGetSramEccErrorStatus(Device device, SramErrors *errors) {
    Status status = ask(__func__, device);
    if (status) return status;
    errors->counts[0] = (unsigned long long)state(device->gpu, "sram_uncorrected", 0);
    errors->exceeded = (unsigned)state(device->gpu, "sram_exceeded", 0);
    return SUCCESS;
}

Status nvmlDeviceGetRetiredPages(Device device, unsigned cause, unsigned *count, unsigned long long *addresses) {
    Status status = ask(__func__, device);
    unsigned room = *count;
    if (status) return status;
    if (!listed("FAKE_NVML_OTHER", device->gpu)) return NOT_SUPPORTED;
    *count = cause == 1 ? (unsigned)state(device->gpu, "pages_retired", 0) : 0;
    if (*count > room) return INSUFFICIENT_SIZE;
    for (unsigned index = 0; index < *count; index++) addresses[index] = index << 16;
    return SUCCESS;
}

/* First the active links, then those that are down. Without links, the GPU has no NVLink. */
Status nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active) {
    Status status = ask(__func__, device);
    if (status) return status;
    long up = state(device->gpu, "nvlinks", 0), down = state(device->gpu, "nvlinks_down", 0);
    if (!(up + down)) return NOT_SUPPORTED;
    *active = (long)link < up;
    return (long)link < up + down ? SUCCESS : INVALID_ARGUMENT;
}

Status nvmlDeviceGetNvLinkErrorCounter(Device device, unsigned link, unsigned counter, unsigned long long *count) {
    Status status = ask(__func__, device);
    (void)link;
    if (!status)
        *count = (unsigned long long)state(device->gpu, counter == 0 ? "nvlink_replays" : "nvlink_recoveries", 0);
    return counter > 1 ? NOT_SUPPORTED : status;
}

Status nvmlDeviceGetGpuFabricInfoV(Device device, Fabric *fabric) {
    Status status = ask(__func__, device);
    if (status) return status;
    fabric->state = (unsigned)state(device->gpu, "fabric_state", 0);
    fabric->status = (Status)state(device->gpu, "fabric_status", SUCCESS);
    fabric->health = (unsigned)state(device->gpu, "fabric_health", 0);
    return fabric->state ? SUCCESS : NOT_SUPPORTED;
}

static Status text_of(const char *call, Device device, char *text, unsigned length, const char *format) {
    Status status = ask(call, device);
    if (!status) snprintf(text, length, format, device->gpu);
    return status;
}

Status nvmlDeviceGetSerial(Device device, char *text, unsigned length) {
    return text_of(__func__, device, text, length, "165000000%04d");
}

Status nvmlDeviceGetVbiosVersion(Device device, char *text, unsigned length) {
    return text_of(__func__, device, text, length, "96.00.74.00.01");
}

Status nvmlDeviceGetInforomImageVersion(Device device, char *text, unsigned length) {
    return text_of(__func__, device, text, length, "G520.0200.00.05");
}

Status nvmlDeviceGetGspFirmwareVersion(Device device, char *text) {
    return text_of(__func__, device, text, 64, "570.86.15");
}
