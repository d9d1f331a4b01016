// The prologue and epilogue of functions that the driver, libcuda, calls.
#pragma once

#include <cuda.h>

#include <new>
#include <type_traits>

#include "call.h"
#include "error.h"

namespace simcuda {

// The body returns a cudaError_t or nothing, and may throw Error. The driver's errors have the runtime's numbers.
template <Needs needs, typename Body>
CUresult driver_call(const char* name, Body body) noexcept {
  if (const cudaError_t refused = begin_call(name, needs)) return static_cast<CUresult>(refused);
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      body();
      return CUDA_SUCCESS;
    } else {
      return static_cast<CUresult>(body());
    }
  } catch (const Error& error) {
    return static_cast<CUresult>(error.code);
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

}  // namespace simcuda
