/* A fake libcuda.so.1: the calls that the probe makes, answered from environment variables instead of a driver.
 *
 *   FAKE_CUDA_INIT        the status that cuInit returns
 *   FAKE_CUDA_COUNT       the number of visible devices; 1 unless set
 *   FAKE_CUDA_ATTRIBUTE   the status that cuDeviceGetAttribute returns
 *   FAKE_CUDA_<number>    the value of that attribute; 0 unless set
 *   FAKE_CUDA_CRASH       cuInit crashes with a segmentation fault
 *   FAKE_CUDA_HANG        cuInit writes its process id to this named pipe, and then never returns
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int number(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text ? atoi(text) : otherwise;
}

int cuInit(unsigned flags) {
    const char *pipe = getenv("FAKE_CUDA_HANG");
    (void)flags;
    printf("a driver that talks\n");
    fflush(stdout);
    if (getenv("FAKE_CUDA_CRASH")) raise(SIGSEGV);
    if (pipe) {
        FILE *file = fopen(pipe, "w");
        fprintf(file, "%d\n", (int)getpid());
        fclose(file);
        for (;;) pause();
    }
    return number("FAKE_CUDA_INIT", 0);
}

int cuDeviceGetCount(int *count) {
    *count = number("FAKE_CUDA_COUNT", 1);
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    char variable[32];
    (void)device;
    snprintf(variable, sizeof variable, "FAKE_CUDA_%d", attribute);
    *value = number(variable, 0);
    return number("FAKE_CUDA_ATTRIBUTE", 0);
}

int cuGetErrorName(int error, const char **name) {
    *name = error == 100 ? "CUDA_ERROR_NO_DEVICE" : 0;
    return *name ? 0 : 1;
}
