// CUDA Runtime API, "Error Handling".

#include <cuda_runtime_api.h>

#include "call.h"
#include "error.h"

using namespace simcuda;

SIMCUDA_EXPORT const char* cudaGetErrorName(cudaError_t error) { return error_name(error); }
SIMCUDA_EXPORT const char* cudaGetErrorString(cudaError_t error) { return error_text(error); }

// These report only what calls of this thread have returned: on an H100 with driver 580 both functions return success
// after an assertion, until a call that uses the device has returned its error.
SIMCUDA_EXPORT cudaError_t cudaGetLastError() {
  begin_call(__func__, Needs::nothing);
  return take_last_error();
}

SIMCUDA_EXPORT cudaError_t cudaPeekAtLastError() {
  begin_call(__func__, Needs::nothing);
  return last_error();
}
