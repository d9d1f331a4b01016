// Device memory of cudaMalloc and similar functions.
#pragma once

#include <cstddef>

#include "allocations.h"
#include "device.h"

namespace simcuda {

// The memory counts against the device's limit. Throws Error(cudaErrorMemoryAllocation).
void* allocate_device(Device& device, std::size_t bytes);
void free_device(const Allocation& allocation);  // the allocation is already removed from the table

}  // namespace simcuda
