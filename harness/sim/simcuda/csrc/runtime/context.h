// The context of a device, created at the device's first use: its share of the memory, and its streams.
#pragma once

#include <driver_types.h>

#include <memory>

#include "device.h"
#include "stream.h"

namespace simcuda {

// Creates the context, at the first call. Memory, streams and work need it.
void wake(Device& device);
bool awake(const Device& device);

// Waits until all work queued so far on all streams is done, regardless of failures and captures.
void drain(Device& device);

std::shared_ptr<Stream> create_stream(Device& device, unsigned flags, int priority);
void destroy_stream(Stream& stream);  // invalidates the handle; queued work still runs

// 0 and cudaStreamLegacy are the current device's legacy stream; cudaStreamPerThread is the calling thread's default
// stream. Throws Error(cudaErrorInvalidResourceHandle).
std::shared_ptr<Stream> find_stream(cudaStream_t handle);

}  // namespace simcuda
