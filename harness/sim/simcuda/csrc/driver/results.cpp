// The driver's results: their names and texts.

#include "driver.h"

using namespace simcuda::driver;

DRIVER_API CUresult cuGetErrorName(CUresult error, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (static_cast<int>(error)) {
#define RESULT(number, text) \
  case number:               \
    *name = #text;           \
    return CUDA_SUCCESS;
#include "results.def"
#undef RESULT
    default:
      *name = nullptr;
      return CUDA_ERROR_INVALID_VALUE;
  }
}

DRIVER_API CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = nullptr;
  const char* name = nullptr;
  if (cuGetErrorName(error, &name) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
