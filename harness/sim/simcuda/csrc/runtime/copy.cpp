#include "copy.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "activity.h"
#include "call.h"
#include "capture.h"
#include "context.h"
#include "memory.h"

namespace simcuda {

namespace {

// What a copy must know of a side. Memory that nobody has registered is pageable, and the host's.
struct Place {
  bool pageable, host, device;  // managed and pinned memory can be used as either
  SimcudaPlace told;
};

SimcudaPlace told_of(const Allocation& allocation) {
  if (allocation.pinned()) return {SimcudaMemory::pinned, -1};
  return {allocation.on_device() ? SimcudaMemory::device : SimcudaMemory::managed, allocation.device->index};
}

// Throws Error(cudaErrorInvalidValue) if the side leaves the allocation that it begins in.
Place place_of(const Copy& copy, const Copy::Side& side) {
  check(side.address != nullptr);
  const auto found = find_allocation(side.address);
  if (!found) return {true, true, false, {SimcudaMemory::pageable, -1}};
  // Ranges of virtual memory may lie next to each other, as parts of one.
  if (found->kind != Allocation::Kind::mapped) {
    const char* const last = side.at(copy.height - 1, copy.depth - 1) + copy.width - 1;
    check(found->contains(last) || found->kind == Allocation::Kind::registered);
  }
  return {false, !found->on_device(), true, told_of(*found)};
}

void check_kind(cudaMemcpyKind kind, const Place& to, const Place& from) {
  switch (kind) {
    case cudaMemcpyHostToHost:
      check(to.host && from.host);
      return;
    case cudaMemcpyHostToDevice:
      check(to.device && from.host);
      return;
    case cudaMemcpyDeviceToHost:
      check(to.host && from.device);
      return;
    case cudaMemcpyDeviceToDevice:
      check(to.device && from.device);
      return;
    case cudaMemcpyDefault:
      return;
    default:
      throw Error(cudaErrorInvalidMemcpyDirection);
  }
}

const char* name_of(const Place& to, const Place& from) {
  if (to.host && from.host) return "Memcpy HtoH";
  if (from.host) return "Memcpy HtoD";
  return to.host ? "Memcpy DtoH" : "Memcpy DtoD";
}

// The work of a copy, of which observers learn what it is.
Work work_of(const Copy& copy, const Place& to, const Place& from, bool synchronous) {
  return [copy, to = to.told, from = from.told, synchronous] {
    activity::describe_copy(copy.bytes(), from, to, !synchronous);
    copy.run();
  };
}

template <typename Value>
void fill_row(char* row, unsigned value, std::size_t elements) {
  std::fill_n(reinterpret_cast<Value*>(row), elements, static_cast<Value>(value));
}

struct Fill {
  char* address;
  std::size_t pitch;
  unsigned value, element;
  std::size_t width, height;  // in elements
  SimcudaPlace told;
  bool synchronous;

  void run() const {
    activity::describe_fill(width * height * element, value, told, !synchronous);
    for (std::size_t y = 0; y < height; ++y) {
      char* const row = address + y * pitch;
      switch (element) {
        case 1:
          std::memset(row, static_cast<int>(value), width);
          break;
        case 2:
          fill_row<std::uint16_t>(row, value, width);
          break;
        default:
          fill_row<std::uint32_t>(row, value, width);
          break;
      }
    }
  }
};

// Of device memory; managed and pinned memory can be filled as well.
Fill fill_of(const cudaMemsetParamsV2& params, bool synchronous) {
  check(params.dst != nullptr && params.width != 0 && params.height != 0);
  check(params.elementSize == 1 || params.elementSize == 2 || params.elementSize == 4);
  const std::size_t row = params.width * params.elementSize;
  check(params.height == 1 || params.pitch >= row);
  const auto found = find_allocation(params.dst);
  check(found.has_value());
  const std::size_t bytes = (params.height - 1) * params.pitch + row;
  check(found->kind == Allocation::Kind::mapped || found->contains(static_cast<char*>(params.dst) + bytes - 1));
  return {static_cast<char*>(params.dst),
          params.pitch,
          params.value,
          params.elementSize,
          params.width,
          params.height,
          told_of(*found),
          synchronous};
}

cudaError_t fill(Stream& stream, void* address, std::size_t pitch, int value, std::size_t width, std::size_t height,
                 bool synchronous) {
  if (width == 0 || height == 0) return cudaSuccess;
  wake(stream.device());
  if (synchronous) forbid_implicit(stream, "cudaMemset");
  // CUDA keeps the lowest byte.
  const cudaError_t error = submit(
      stream, fill_operation({address, pitch, static_cast<unsigned>(value) & 0xffU, 1, width, height}, synchronous));
  // It does not wait for device memory to be filled.
  if (error == cudaSuccess && synchronous && !find_allocation(address)->on_device()) stream.drain();
  return error;
}

}  // namespace

void Copy::run() const {
  if (width == 0) return;
  const bool dense = (height == 1 || (to.row == width && from.row == width)) &&
                     (depth == 1 || (to.slice == width * height && from.slice == width * height));
  if (dense) {
    std::memmove(to.address, from.address, bytes());
    return;
  }
  for (std::size_t z = 0; z < depth; ++z) {
    for (std::size_t y = 0; y < height; ++y) std::memmove(to.at(y, z), from.at(y, z), width);
  }
}

cudaMemcpy3DParms Copy::params(cudaMemcpyKind kind) const {
  cudaMemcpy3DParms params{};
  const auto rows = [&](const Side& side) { return side.row == 0 ? height : side.slice / side.row; };
  params.srcPtr = {from.address, from.row, width, rows(from)};
  params.dstPtr = {to.address, to.row, width, rows(to)};
  params.extent = {width, height, depth};
  params.kind = kind;
  return params;
}

Copy copy_of(void* to, const void* from, std::size_t bytes) {
  return {{static_cast<char*>(to), bytes, bytes}, {static_cast<char*>(const_cast<void*>(from)), bytes, bytes}, bytes};
}

Copy copy_of(const cudaMemcpy3DParms& params) {
  check(params.srcArray == nullptr && params.dstArray == nullptr);
  const auto side = [&](const cudaPitchedPtr& of, const cudaPos& place) {
    check(of.pitch >= params.extent.width || (params.extent.height <= 1 && params.extent.depth <= 1),
          cudaErrorInvalidPitchValue);
    const std::size_t slice = of.pitch * of.ysize;
    return Copy::Side{static_cast<char*>(of.ptr) + place.z * slice + place.y * of.pitch + place.x, of.pitch, slice};
  };
  return {side(params.dstPtr, params.dstPos), side(params.srcPtr, params.srcPos), params.extent.width,
          params.extent.height, params.extent.depth};
}

cudaError_t copy(Stream& stream, const Copy& copy, cudaMemcpyKind kind, bool synchronous) {
  if (copy.bytes() == 0) return cudaSuccess;
  wake(stream.device());
  const Place to = place_of(copy, copy.to), from = place_of(copy, copy.from);
  check_kind(kind, to, from);
  if (synchronous) forbid_implicit(stream, "cudaMemcpy");
  Operation operation;
  operation.type = cudaGraphNodeTypeMemcpy;
  operation.name = name_of(to, from);
  if (capture_of(stream)) {
    operation.work = work_of(copy, to, from, false);
    operation.params.type = cudaGraphNodeTypeMemcpy;
    operation.params.memcpy.copyParams = copy.params(kind);
    return submit(stream, std::move(operation));
  }
  // The source is staged before the call returns; what a copy to pageable memory writes is there when it does.
  if (from.pageable && !to.pageable && !to.host) {
    const auto staged = std::make_shared_for_overwrite<char[]>(copy.bytes());
    Copy in = copy, out = copy;
    in.to = out.from = {staged.get(), copy.width, copy.width * copy.height};
    in.run();
    operation.work = [run = work_of(out, to, from, synchronous), staged] { run(); };
    return submit(stream, std::move(operation));
  }
  operation.work = work_of(copy, to, from, synchronous);
  if (const cudaError_t error = submit(stream, std::move(operation)); error != cudaSuccess) return error;
  // Between devices, or within one, the host waits in no case.
  const bool devices = !to.host && !from.host;
  if (to.pageable || (synchronous && !devices)) {
    stream.drain();
    return stream.device().error();
  }
  return cudaSuccess;
}

Operation copy_operation(const cudaMemcpy3DParms& params) {
  const Copy copy = copy_of(params);
  check(copy.bytes() != 0);
  const Place to = place_of(copy, copy.to), from = place_of(copy, copy.from);
  check_kind(params.kind, to, from);
  Operation operation;
  operation.type = cudaGraphNodeTypeMemcpy;
  operation.name = name_of(to, from);
  operation.work = work_of(copy, to, from, false);
  operation.params.type = cudaGraphNodeTypeMemcpy;
  operation.params.memcpy.copyParams = params;
  return operation;
}

Operation fill_operation(const cudaMemsetParamsV2& params, bool synchronous) {
  Operation operation;
  operation.type = cudaGraphNodeTypeMemset;
  operation.name = "Memset";
  operation.work = [fill = fill_of(params, synchronous)] { fill.run(); };
  operation.params.type = cudaGraphNodeTypeMemset;
  operation.params.memset = params;
  return operation;
}

}  // namespace simcuda

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

// A stream that is captured refuses it, and its capture goes on without the copies: https://github.com/rapidsai/rmm,
// issue 2518, seen with CUDA 13.
SIMCUDA_EXPORT cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes,
                                                size_t count, cudaMemcpyAttributes* attributes, size_t* first,
                                                size_t groups, cudaStream_t handle) {
  SIMCUDA_CALL(device, {
    check(to != nullptr && from != nullptr && bytes != nullptr && count != 0);
    check(attributes != nullptr && first != nullptr && groups != 0 && groups <= count && first[0] == 0);
    check(handle != nullptr && handle != cudaStreamLegacy);
    const auto stream = find_stream(handle);
    check(capture_of(*stream) == nullptr, cudaErrorStreamCaptureUnsupported);
    for (size_t i = 0; i < count; ++i) {
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

// The rows of all slices are as far from each other as those of one, as long as slices are filled whole.
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
