// The simulated NCCL's use of the simulated CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace simcuda::nccl {

// Makes a device the current one while the object lives.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;
};

int current_device();                                // index among the visible devices; -1 if there is none
int machine_number(int device);                      // index among all devices of the machine
void check_cuda(cudaError_t error);                  // throws Failure{ncclUnhandledCudaError}
unsigned long long capture_of(cudaStream_t stream);  // the id plus 1; 0 without a capture. Throws Failure.
// Returns whether the device may access all of these bytes. If not, sets cudaErrorIllegalAddress on the device.
bool accessible(int device, const void* address, std::size_t bytes);

}  // namespace simcuda::nccl
