/* A fake libcublas.so with the version function that the probe calls. */
#include <stdlib.h>

int cublasGetProperty(int part, int *value) {
    static const int parts[] = {13, 1, 2};
    const char *status = getenv("FAKE_CUBLAS_STATUS");
    *value = parts[part];
    return status ? atoi(status) : 0;
}
