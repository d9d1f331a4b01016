// Copies between and within the memories of the host and of devices, and fills.
//
// CUDA Runtime API, "API synchronization behavior": what a call that copies waits for depends on the kinds of memory.
#pragma once

#include <driver_types.h>

#include <cstddef>

#include "operation.h"
#include "stream.h"

namespace simcuda {

// A box of bytes to be copied: `depth` slices of `height` rows of `width` bytes.
struct Copy {
  struct Side {
    char* address = nullptr;
    std::size_t row = 0, slice = 0;  // bytes from one to the next
    char* at(std::size_t y, std::size_t z) const { return address + z * slice + y * row; }
  };
  Side to, from;
  std::size_t width = 0, height = 1, depth = 1;

  std::size_t bytes() const { return width * height * depth; }
  void run() const;
  cudaMemcpy3DParms params(cudaMemcpyKind kind) const;
};

Copy copy_of(void* to, const void* from, std::size_t bytes);
// Throws Error(cudaErrorInvalidPitchValue), or Error(cudaErrorInvalidValue) for arrays, which there are none of.
Copy copy_of(const cudaMemcpy3DParms& params);

// Queues the copy, or adds it to the stream's capture. If it is synchronous, it waits. Throws Error.
cudaError_t copy(Stream& stream, const Copy& copy, cudaMemcpyKind kind, bool synchronous);

// The same for a fill with the lowest byte of `value`: `height` rows of `width` bytes, `pitch` bytes from one to the
// next.
cudaError_t fill(Stream& stream, void* address, std::size_t pitch, int value, std::size_t width, std::size_t height,
                 bool synchronous);

// Of nodes that are added by themselves. Throws Error(cudaErrorInvalidValue). Whether a fill is synchronous is only
// told.
Operation copy_operation(const cudaMemcpy3DParms& params);
Operation fill_operation(const cudaMemsetParamsV2& params, bool synchronous = false);

}  // namespace simcuda
