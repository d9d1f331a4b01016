// The context of a device, made at the first use of the device: what it takes of the memory, and its streams.
#pragma once

#include <driver_types.h>

#include <memory>

#include "device.h"
#include "stream.h"

namespace simcuda {

// Makes the context, at the first call. Memory, streams and work need one.
void wake(Device& device);
bool awake(const Device& device);

// Waits until all that was queued on all streams so far is done, whatever fails or is captured.
void drain(Device& device);

std::shared_ptr<Stream> create_stream(Device& device, unsigned flags, int priority);
void destroy_stream(Stream& stream);  // it is no stream any longer; what is queued goes on

// 0 and cudaStreamLegacy are the current device's legacy stream, cudaStreamPerThread the calling thread's own. Throws
// Error(cudaErrorInvalidResourceHandle).
std::shared_ptr<Stream> find_stream(cudaStream_t handle);

}  // namespace simcuda
