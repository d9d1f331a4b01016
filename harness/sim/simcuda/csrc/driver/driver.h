// How each function of the driver begins and ends.
#pragma once

#include <cuda_runtime_api.h>

// The header gives old names to new functions by macros; here the names in the library matter.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <utility>

#include "simcuda.h"
#include "simcuda_activity.h"
#include "simcuda_driver.h"

#define DRIVER_API extern "C" __attribute__((visibility("default")))

namespace simcuda::driver {

// cuInit has been called, or the runtime has been used. Otherwise CUDA_ERROR_NOT_INITIALIZED; also in a child of a
// process that has used CUDA.
bool ready();
void set_ready();

// Results and runtime errors have the same numbers.
inline CUresult result(cudaError_t error) {
  // The thread's last error belongs to the runtime's callers.
  if (error != cudaSuccess) cudaGetLastError();
  return static_cast<CUresult>(error);
}

// `name` is that of the function, under which observers are told of the call.
template <typename Body>
CUresult call(const char* name, Body&& body) {
  SimcudaCall record;
  simcudaBeginCall(&record, name, 1);
  const CUresult done = ready() ? std::forward<Body>(body)() : CUDA_ERROR_NOT_INITIALIZED;
  record.result = static_cast<int>(done);
  simcudaEndCall(&record);
  return done;
}

// A function that is what one of the runtime is.
#define FORWARD(...) return ::simcuda::driver::call(__func__, [&] { return ::simcuda::driver::result(__VA_ARGS__); })
// In DRIVER_CALL({ ... }) the body is the rest of the function, and returns a CUresult.
#define DRIVER_CALL(...) return ::simcuda::driver::call(__func__, [&]()->CUresult __VA_ARGS__)

inline void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// Contexts: each device has its primary one, and no other.
CUcontext context_of(int device);
int device_of(CUcontext context);  // -1 if it is none

}  // namespace simcuda::driver
