// The prologue and epilogue of each function of the driver.
#pragma once

#include <cuda_runtime_api.h>

// cuda.h redefines functions as their versioned names by macros. This file needs the names as the library exports them.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <new>
#include <utility>

#include "simcuda.h"
#include "simcuda_activity.h"
#include "simcuda_driver.h"

#define DRIVER_API extern "C" __attribute__((visibility("default")))

namespace simcuda::driver {

// Whether cuInit has been called, or the runtime has been used. Otherwise functions return CUDA_ERROR_NOT_INITIALIZED,
// as they do in a child of a process that has used CUDA.
bool ready();
void set_ready();

// Results and runtime errors have the same numbers.
inline CUresult result(cudaError_t error) {
  // The thread's last error belongs to the runtime's callers.
  if (error != cudaSuccess) cudaGetLastError();
  return static_cast<CUresult>(error);
}

// `name` is the name of the function in reports to observers.
template <typename Body>
CUresult call(const char* name, Body&& body) noexcept {
  SimcudaCall record;
  simcudaBeginCall(&record, name, 1);
  CUresult done = CUDA_ERROR_NOT_INITIALIZED;
  try {
    if (ready()) done = std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    done = CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    done = CUDA_ERROR_UNKNOWN;
  }
  record.result = static_cast<int>(done);
  simcudaEndCall(&record);
  return done;
}

CUcontext current();  // the calling thread's context; null if it has none

// Defines a function as a call of the runtime.
#define FORWARD(...) return ::simcuda::driver::call(__func__, [&] { return ::simcuda::driver::result(__VA_ARGS__); })
// The same for a function that needs a current context.
#define IN_CONTEXT(...)                                                                      \
  return ::simcuda::driver::call(__func__, [&] {                                             \
    return ::simcuda::driver::current() == nullptr ? CUDA_ERROR_INVALID_CONTEXT              \
                                                   : ::simcuda::driver::result(__VA_ARGS__); \
  })
// DRIVER_CALL({ ... }) takes the rest of the function as its body, which returns a CUresult.
#define DRIVER_CALL(...) return ::simcuda::driver::call(__func__, [&]()->CUresult __VA_ARGS__)

inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// Contexts: each device has its primary context, and no other.
CUcontext context_of(int device);
int device_of(CUcontext context);  // -1 if it is not a primary context

}  // namespace simcuda::driver
