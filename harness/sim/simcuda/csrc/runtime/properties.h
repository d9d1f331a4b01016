// What a simulated device says of itself: what an H100 would, where a program can do something with it.
#pragma once

#include <cuda_runtime_api.h>

namespace simcuda {

class Device;

cudaDeviceProp properties_of(const Device& device);
int attribute_of(const Device& device, cudaDeviceAttr attribute);  // throws Error(cudaErrorInvalidValue)

}  // namespace simcuda
