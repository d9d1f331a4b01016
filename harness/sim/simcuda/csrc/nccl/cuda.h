// What the simulated NCCL asks of the simulated CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace simcuda::nccl {

// A device is made the current one as long as this lives.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -1;
};

int current_device();                                // of this thread, among the visible ones; -1 if there is none
int machine_number(int device);                      // among all of the machine
void check_cuda(cudaError_t error);                  // throws Failure{ncclUnhandledCudaError}
unsigned long long capture_of(cudaStream_t stream);  // a number; 0 if the stream is in no capture. Throws Failure.
// Whether all bytes may be read and written by the device; otherwise it fails, as after an illegal access.
bool accessible(int device, const void* address, std::size_t bytes);

}  // namespace simcuda::nccl
