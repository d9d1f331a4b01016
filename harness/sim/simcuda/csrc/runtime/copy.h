// Copies between and within the memories of the host and of devices, and fills.
//
// CUDA Runtime API, "API synchronization behavior": whether a copy waits depends on the kinds of memory.
#pragma once

#include <driver_types.h>

#include <cstddef>

#include "operation.h"
#include "stream.h"

namespace simcuda {

// A box of bytes to copy: `depth` slices of `height` rows of `width` bytes.
struct Copy {
  struct Side {
    char* address = nullptr;
    std::size_t row = 0, slice = 0;  // distances in bytes
    char* at(std::size_t y, std::size_t z) const { return address + z * slice + y * row; }
  };
  Side to, from;
  std::size_t width = 0, height = 1, depth = 1;

  std::size_t bytes() const { return width * height * depth; }
  void run() const;
  cudaMemcpy3DParms params(cudaMemcpyKind kind) const;
};

Copy copy_of(void* to, const void* from, std::size_t bytes);
// Throws Error(cudaErrorInvalidPitchValue), or Error(cudaErrorInvalidValue) for arrays, which are not supported.
Copy copy_of(const cudaMemcpy3DParms& params);

// Queues the copy, or adds it to the stream's capture. Waits for it if it is synchronous. Throws Error.
cudaError_t copy(Stream& stream, const Copy& copy, cudaMemcpyKind kind, bool synchronous);

// Does the same for a fill with the lowest byte of `value`: `height` rows of `width` bytes, at a distance of `pitch`
// bytes.
cudaError_t fill(Stream& stream, void* address, std::size_t pitch, int value, std::size_t width, std::size_t height,
                 bool synchronous);

// Return the operation of an explicitly added node. Throw Error(cudaErrorInvalidValue). `synchronous` only affects
// reports to observers.
Operation copy_operation(const cudaMemcpy3DParms& params);
Operation fill_operation(const cudaMemsetParamsV2& params, bool synchronous = false);

}  // namespace simcuda
