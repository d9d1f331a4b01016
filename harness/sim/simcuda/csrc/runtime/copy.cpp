#include "copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "activity.h"
#include "allocations.h"
#include "capture.h"
#include "context.h"
#include "device.h"
#include "error.h"

namespace simcuda {

namespace {

// The properties of one side of a copy. Unregistered memory is pageable host memory.
struct Place {
  bool pageable, host, device;  // managed and pinned memory can be used as either
  SimcudaPlace place;
};

SimcudaPlace place_of(const Allocation& allocation) {
  if (allocation.pinned()) return {SimcudaMemory::pinned, -1};
  return {allocation.on_device() ? SimcudaMemory::device : SimcudaMemory::managed, allocation.device->index};
}

// Throws Error(cudaErrorInvalidValue) if the side exceeds the allocation that contains its first byte.
Place place_of(const Copy& copy, const Copy::Side& side) {
  check(side.address != nullptr);
  const auto found = find_allocation(side.address);
  if (!found) return {true, true, false, {SimcudaMemory::pageable, -1}};
  // Adjacent ranges of virtual memory can form one range.
  if (found->kind != Allocation::Kind::mapped) {
    const char* const last = side.at(copy.height - 1, copy.depth - 1) + copy.width - 1;
    check(found->contains(last) || found->kind == Allocation::Kind::registered);
  }
  return {false, !found->on_device(), true, place_of(*found)};
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

// Returns the work of a copy, which describes itself to observers.
Work work_of(Copy copy, const Place& to, const Place& from, bool synchronous) {
  copy.to.address = races::for_work(copy.to.address);
  copy.from.address = races::for_work(copy.from.address);
  return [copy, to = to.place, from = from.place, synchronous] {
    activity::describe_copy(copy.bytes(), from, to, !synchronous);
    copy.run();
  };
}

void add_rows(std::vector<races::Access>& accesses, const Copy& copy, const Copy::Side& side, bool write) {
  for (std::size_t z = 0; z < copy.depth; ++z) {
    for (std::size_t y = 0; y < copy.height; ++y) accesses.push_back({side.at(y, z), copy.width, write});
  }
}

// The memory that a copy uses. The host may use pageable memory at any time, and no call shows when.
std::vector<races::Access> accesses_of(const Copy& copy, const Place& to, const Place& from) {
  std::vector<races::Access> accesses;
  if (!races::enabled()) return accesses;
  if (!from.pageable) add_rows(accesses, copy, copy.from, false);
  if (!to.pageable) add_rows(accesses, copy, copy.to, true);
  return accesses;
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
  SimcudaPlace place;
  bool synchronous;

  void run() const {
    activity::describe_fill(width * height * element, value, place, !synchronous);
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

// Returns a fill of device memory. Managed and pinned memory can be filled, too.
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
          place_of(*found),
          synchronous};
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
  operation.accesses = accesses_of(copy, to, from);
  if (capture_of(stream)) {
    operation.work = work_of(copy, to, from, false);
    operation.params.type = cudaGraphNodeTypeMemcpy;
    operation.params.memcpy.copyParams = copy.params(kind);
    return submit(stream, std::move(operation));
  }
  // The source is staged before the call returns. The data of a copy to pageable memory is there when the call returns.
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
  // The host never waits for copies between devices or within one.
  const bool devices = !to.host && !from.host;
  if (to.pageable || (synchronous && !devices)) {
    stream.drain();
    return stream.device().error();
  }
  return cudaSuccess;
}

cudaError_t fill(Stream& stream, void* address, std::size_t pitch, int value, std::size_t width, std::size_t height,
                 bool synchronous) {
  if (width == 0 || height == 0) return cudaSuccess;
  wake(stream.device());
  if (synchronous) forbid_implicit(stream, "cudaMemset");
  // CUDA uses the lowest byte.
  const cudaError_t error = submit(
      stream, fill_operation({address, pitch, static_cast<unsigned>(value) & 0xffU, 1, width, height}, synchronous));
  // The call does not wait for fills of device memory.
  if (error == cudaSuccess && synchronous && !find_allocation(address)->on_device()) stream.drain();
  return error;
}

Operation copy_operation(const cudaMemcpy3DParms& params) {
  const Copy copy = copy_of(params);
  check(copy.bytes() != 0);
  const Place to = place_of(copy, copy.to), from = place_of(copy, copy.from);
  check_kind(params.kind, to, from);
  Operation operation;
  operation.type = cudaGraphNodeTypeMemcpy;
  operation.name = name_of(to, from);
  operation.accesses = accesses_of(copy, to, from);
  operation.work = work_of(copy, to, from, false);
  operation.params.type = cudaGraphNodeTypeMemcpy;
  operation.params.memcpy.copyParams = params;
  return operation;
}

Operation fill_operation(const cudaMemsetParamsV2& params, bool synchronous) {
  Operation operation;
  operation.type = cudaGraphNodeTypeMemset;
  operation.name = "Memset";
  const Fill fill = fill_of(params, synchronous);
  for (std::size_t y = 0; races::enabled() && y < fill.height; ++y) {
    operation.accesses.push_back({fill.address + y * fill.pitch, fill.width * fill.element, true});
  }
  operation.work = [fill] { fill.run(); };
  operation.params.type = cudaGraphNodeTypeMemset;
  operation.params.memset = params;
  return operation;
}

}  // namespace simcuda
