// Device memory, that of cudaMalloc and its kin.
#pragma once

#include <cstddef>

#include "allocations.h"
#include "device.h"

namespace simcuda {

// It counts against the device's limit. Throws Error(cudaErrorMemoryAllocation).
void* allocate_device(Device& device, std::size_t bytes);
void free_device(const Allocation& allocation);  // that was removed

}  // namespace simcuda
