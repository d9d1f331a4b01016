/* The links between GPUs, which the fake NVML lacks. It is loaded in place of the fake NVML, and loads that.
 *
 *   FAKE_LINKS         the number of NVLinks per GPU; 18 unless set
 *   FAKE_LINKS_ACTIVE  the number of active ones; all unless set
 *   FAKE_P2P_READ, FAKE_P2P_WRITE, FAKE_P2P_NVLINK  "<gpu> <gpu> <status>": the status from the first to the second; 0 for all others
 *   FAKE_FABRIC        the state of each GPU's fabric; 3 (joined) unless set
 *   FAKE_FABRIC_STATUS its status; 0 (success) unless set
 */
#include <stdio.h>
#include <stdlib.h>

enum { NOT_SUPPORTED = 3, INVALID_ARGUMENT = 2, READ = 0, WRITE = 1, NVLINK = 2 };

typedef struct { int gpu, slice; } *Device;

static int number(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text ? atoi(text) : otherwise;
}

int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active) {
    unsigned links = (unsigned)number("FAKE_LINKS", 18);
    (void)device;
    if (!links) return NOT_SUPPORTED;
    if (link >= links) return INVALID_ARGUMENT;
    *active = link < (unsigned)number("FAKE_LINKS_ACTIVE", (int)links);
    return 0;
}

int nvmlDeviceGetP2PStatus(Device from, Device to, int way, int *status) {
    static const char *const variables[] = {"FAKE_P2P_READ", "FAKE_P2P_WRITE", "FAKE_P2P_NVLINK"};
    int first, second, found;
    if (way < READ || way > NVLINK) return INVALID_ARGUMENT;
    const char *text = getenv(variables[way]);
    *status = 0;
    if (text && sscanf(text, "%d %d %d", &first, &second, &found) == 3 && from->gpu == first && to->gpu == second)
        *status = found;
    return 0;
}

typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; } Fabric;

int nvmlDeviceGetGpuFabricInfoV(Device device, Fabric *fabric) {
    (void)device;
    if (number("FAKE_FABRIC", 3) == 0) return NOT_SUPPORTED;
    fabric->state = (unsigned char)number("FAKE_FABRIC", 3);
    fabric->status = number("FAKE_FABRIC_STATUS", 0);
    return 0;
}
