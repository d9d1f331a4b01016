// The interface: copies and fills. CUDA Runtime API, "Memory Management".
#include <cuda_runtime_api.h>

#include <cstddef>

#include "call.h"
#include "capture.h"
#include "context.h"
#include "copy.h"
#include "device.h"
#include "process.h"

using namespace simcuda;

namespace {

constexpr bool synchronous = true, asynchronous = false;

Copy rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
          std::size_t height) {
  check(width <= to_pitch && width <= from_pitch, cudaErrorInvalidPitchValue);
  return {{static_cast<char*>(to), to_pitch, to_pitch * height},
          {static_cast<char*>(const_cast<void*>(from)), from_pitch, from_pitch * height},
          width,
          height};
}

Copy between_devices(void* to, int to_device, const void* from, int from_device, std::size_t bytes) {
  wake(device(to_device));
  wake(device(from_device));
  return copy_of(to, from, bytes);
}

Copy between_devices(const cudaMemcpy3DPeerParms& params) {
  wake(device(params.srcDevice));
  wake(device(params.dstDevice));
  cudaMemcpy3DParms plain{};
  plain.srcArray = params.srcArray;
  plain.srcPos = params.srcPos;
  plain.srcPtr = params.srcPtr;
  plain.dstArray = params.dstArray;
  plain.dstPos = params.dstPos;
  plain.dstPtr = params.dstPtr;
  plain.extent = params.extent;
  return copy_of(plain);
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  SIMCUDA_CALL(device, { return copy(*find_stream(nullptr), copy_of(to, from, bytes), kind, synchronous); });
}

SIMCUDA_EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                           cudaStream_t stream) {
  SIMCUDA_CALL(device, { return copy(*find_stream(stream), copy_of(to, from, bytes), kind, asynchronous); });
}

SIMCUDA_EXPORT cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  SIMCUDA_CALL(device, {
    return copy(*find_stream(nullptr), between_devices(to, to_device, from, from_device, bytes), cudaMemcpyDefault,
                synchronous);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                               cudaStream_t stream) {
  SIMCUDA_CALL(device, {
    return copy(*find_stream(stream), between_devices(to, to_device, from, from_device, bytes), cudaMemcpyDefault,
                asynchronous);
  });
}

#if CUDART_VERSION >= 13000

// A capturing stream refuses the call, and its capture continues without the copies, as seen with CUDA 13:
// https://github.com/rapidsai/rmm, issue 2518.
SIMCUDA_EXPORT cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes,
                                                size_t count, cudaMemcpyAttributes* attributes, size_t* first,
                                                size_t groups, cudaStream_t handle) {
  SIMCUDA_CALL(device, {
    check(to != nullptr && from != nullptr && bytes != nullptr && count != 0);
    check(attributes != nullptr && first != nullptr && groups != 0 && groups <= count && first[0] == 0);
    check(handle != nullptr && handle != cudaStreamLegacy);
    const auto stream = find_stream(handle);
    check(capture_of(*stream) == nullptr, cudaErrorStreamCaptureUnsupported);
    const bool reversed = pool().order() == work::Order::reversed;
    for (size_t place = 0; place < count; ++place) {
      const size_t i = reversed ? count - 1 - place : place;
      check(to[i] != nullptr && from[i] != nullptr && bytes[i] != 0);
      const auto error = copy(*stream, copy_of(to[i], from[i], bytes[i]), cudaMemcpyDefault, asynchronous);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}

#endif

SIMCUDA_EXPORT cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                        size_t height, cudaMemcpyKind kind) {
  SIMCUDA_CALL(device, {
    return copy(*find_stream(nullptr), rows(to, to_pitch, from, from_pitch, width, height), kind, synchronous);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                             size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  SIMCUDA_CALL(device, {
    return copy(*find_stream(stream), rows(to, to_pitch, from, from_pitch, width, height), kind, asynchronous);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* params) {
  SIMCUDA_CALL(device, {
    check(params != nullptr);
    return copy(*find_stream(nullptr), copy_of(*params), params->kind, synchronous);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* params, cudaStream_t stream) {
  SIMCUDA_CALL(device, {
    check(params != nullptr);
    return copy(*find_stream(stream), copy_of(*params), params->kind, asynchronous);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemcpy3DPeer(const cudaMemcpy3DPeerParms* params) {
  SIMCUDA_CALL(device, {
    check(params != nullptr);
    return copy(*find_stream(nullptr), between_devices(*params), cudaMemcpyDefault, synchronous);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemcpy3DPeerAsync(const cudaMemcpy3DPeerParms* params, cudaStream_t stream) {
  SIMCUDA_CALL(device, {
    check(params != nullptr);
    return copy(*find_stream(stream), between_devices(*params), cudaMemcpyDefault, asynchronous);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  SIMCUDA_CALL(device, { return fill(*find_stream(nullptr), address, bytes, value, bytes, 1, synchronous); });
}

SIMCUDA_EXPORT cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  SIMCUDA_CALL(device, { return fill(*find_stream(stream), address, bytes, value, bytes, 1, asynchronous); });
}

SIMCUDA_EXPORT cudaError_t cudaMemset2D(void* address, size_t pitch, int value, size_t width, size_t height) {
  SIMCUDA_CALL(device, { return fill(*find_stream(nullptr), address, pitch, value, width, height, synchronous); });
}

SIMCUDA_EXPORT cudaError_t cudaMemset2DAsync(void* address, size_t pitch, int value, size_t width, size_t height,
                                             cudaStream_t stream) {
  SIMCUDA_CALL(device, { return fill(*find_stream(stream), address, pitch, value, width, height, asynchronous); });
}

// If slices are filled as a whole, all rows have the same distance.
static cudaError_t fill_box(Stream& stream, const cudaPitchedPtr& to, int value, const cudaExtent& extent, bool waits) {
  if (extent.height == to.ysize || extent.depth <= 1) {
    return fill(stream, to.ptr, to.pitch, value, extent.width, extent.height * extent.depth, waits);
  }
  for (std::size_t z = 0; z < extent.depth; ++z) {
    char* const slice = static_cast<char*>(to.ptr) + z * to.pitch * to.ysize;
    if (const auto error = fill(stream, slice, to.pitch, value, extent.width, extent.height, waits)) return error;
  }
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t cudaMemset3D(cudaPitchedPtr to, int value, cudaExtent extent) {
  SIMCUDA_CALL(device, { return fill_box(*find_stream(nullptr), to, value, extent, synchronous); });
}

SIMCUDA_EXPORT cudaError_t cudaMemset3DAsync(cudaPitchedPtr to, int value, cudaExtent extent, cudaStream_t stream) {
  SIMCUDA_CALL(device, { return fill_box(*find_stream(stream), to, value, extent, asynchronous); });
}
