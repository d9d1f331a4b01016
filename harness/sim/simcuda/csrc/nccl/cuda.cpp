#include "cuda.h"

#include <cstdio>
#include <string>

#include "../include/simcuda.h"
#include "../include/simcuda_driver.h"
#include "clique.h"

namespace simcuda::nccl {

OnDevice::OnDevice(int device) {
  const int current = simcudaCurrentDevice();
  if (current == device) return;
  before_ = current;
  check_cuda(cudaSetDevice(device));
}
OnDevice::~OnDevice() {
  if (before_ >= 0) cudaSetDevice(before_);
}

int current_device() { return simcudaCurrentDevice(); }

int machine_number(int device) {
  char id[32] = {};
  check_cuda(cudaDeviceGetPCIBusId(id, sizeof id, device));
  unsigned domain = 0, bus = 0;
  std::sscanf(id, "%x:%x", &domain, &bus);
  return static_cast<int>(bus) - 1;
}

void check_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  throw Failure{ncclUnhandledCudaError,
                "Cuda failure " + std::to_string(error) + " '" + cudaGetErrorString(error) + "'"};
}

unsigned long long capture_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
#if CUDART_VERSION >= 13000
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr));
#else
  check_cuda(cudaStreamGetCaptureInfo_v3(stream, &status, &id, nullptr, nullptr, nullptr, nullptr));
#endif
  return status == cudaStreamCaptureStatusActive ? id + 1 : 0;
}

bool accessible(int device, const void* address, std::size_t bytes) {
  SimcudaAllocation found{};
  if (bytes == 0) return true;
  if (simcudaFindAllocation(address, &found)) {
    const auto* const end = static_cast<const char*>(found.base) + found.size;
    if (found.mapped || static_cast<const char*>(address) + bytes <= end) return true;
  }
  simcudaFailDevice(device, cudaErrorIllegalAddress, "a collective of NCCL is given memory that no device has");
  return false;
}

}  // namespace simcuda::nccl
