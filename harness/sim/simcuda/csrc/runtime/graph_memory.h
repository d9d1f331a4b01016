// Memory of graphs: nodes that allocate and free, and the device memory that they use.
//
// CUDA Programming Guide, "Graph Memory Nodes". Creating a node fixes its address. The first launch takes the memory,
// which is kept for later ones until cudaDeviceGraphMemTrim. A graph that allocates without freeing cannot be launched
// again until the program, or another graph, has freed its allocation.
#pragma once

#include <driver_types.h>

#include <cstddef>

#include "allocations.h"
#include "device.h"
#include "operation.h"
#include "stream.h"

namespace simcuda {

// Return the operations of an allocation node, whose address they set, and of a free node. Throw
// Error(cudaErrorInvalidValue).
Operation allocation_operation(Device& device, std::size_t bytes, void** address);
Operation free_operation(void* address);

// cudaMallocAsync and cudaFreeAsync on a capturing stream.
cudaError_t capture_allocation(Stream& stream, Device& device, void** address, std::size_t bytes);
cudaError_t capture_free(Stream& stream, void* address);

// Frees the memory outside of graphs. Throws Error(cudaErrorInvalidValue) if no launch has allocated it since it was
// last freed.
void free_graph_memory(const Allocation& allocation);
// Frees memory that an earlier launch left allocated. Called for each node before a launch with
// cudaGraphInstantiateFlagAutoFreeOnLaunch.
void free_if_left(const Operation& operation);

// The current and the maximum memory of a device that graphs use. Throw Error(cudaErrorInvalidValue).
void graph_memory_attribute(const Device& device, cudaGraphMemAttributeType which, void* value);
void reset_graph_memory_attribute(const Device& device, cudaGraphMemAttributeType which);  // to the current value
// Waits for the device, and returns the memory that no graph uses to it.
void trim_graph_memory(Device& device);

}  // namespace simcuda
