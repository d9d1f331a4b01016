// The properties of a simulated device: those of an H100, if a program can make use of them.
#pragma once

#include <cuda_runtime_api.h>

namespace simcuda {

class Device;

cudaDeviceProp properties_of(const Device& device);
int attribute_of(const Device& device, cudaDeviceAttr attribute);  // throws Error(cudaErrorInvalidValue)

}  // namespace simcuda
