// Memory of graphs: nodes that allocate and free, and the memory of a device that they use.
//
// CUDA Programming Guide, "Graph Memory Nodes". The address is fixed when the node is made; the memory behind it is
// taken at the first launch, and kept for later ones until cudaDeviceGraphMemTrim. A graph that allocates without
// freeing cannot be launched again before the program, or another graph, has freed what it allocated.
#pragma once

#include <driver_types.h>

#include <cstddef>

#include "allocations.h"
#include "device.h"
#include "operation.h"
#include "stream.h"

namespace simcuda {

// An allocation node, whose address is then known; and a free node. Throw Error(cudaErrorInvalidValue).
Operation allocation_operation(Device& device, std::size_t bytes, void** address);
Operation free_operation(void* address);

// cudaMallocAsync and cudaFreeAsync of a stream that is captured.
cudaError_t capture_allocation(Stream& stream, Device& device, void** address, std::size_t bytes);
cudaError_t capture_free(Stream& stream, void* address);

// Outside of graphs. Throws Error(cudaErrorInvalidValue) if no launch has allocated it since it was freed.
void free_graph_memory(const Allocation& allocation);
// Before a launch with cudaGraphInstantiateFlagAutoFreeOnLaunch, of each node: frees what an earlier launch left.
void free_if_left(const Operation& operation);

// The memory of a device that graphs use, and have used at most. Throw Error(cudaErrorInvalidValue).
void graph_memory_attribute(const Device& device, cudaGraphMemAttributeType which, void* value);
void reset_graph_memory_attribute(const Device& device, cudaGraphMemAttributeType which);  // to what is current
// Waits for the device, and gives it back what no graph uses.
void trim_graph_memory(Device& device);

}  // namespace simcuda
