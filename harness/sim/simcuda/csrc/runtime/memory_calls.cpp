// The interface: device memory and managed memory. CUDA Runtime API, "Memory Management".
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include "allocations.h"
#include "arena.h"
#include "call.h"
#include "capture.h"
#include "context.h"
#include "device.h"
#include "graph_memory.h"
#include "memory.h"
#include "pages.h"
#include "pools.h"

using namespace simcuda;
using Kind = Allocation::Kind;

namespace {

constexpr std::size_t pitch_alignment = 512;  // as on an H100, for cudaMallocPitch

void* allocate_managed(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw Error(cudaErrorMemoryAllocation);
  return memory;
}

cudaError_t allocate(void** address, std::size_t bytes, const char* call) {
  check(address != nullptr);
  Device& device = current_device();
  wake(device);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  forbid_unsafe(call);
  *address = allocate_device(device, bytes);
  return cudaSuccess;
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaMalloc(void** address, size_t size) {
  SIMCUDA_CALL(device, { return allocate(address, size, "cudaMalloc"); });
}

SIMCUDA_EXPORT cudaError_t cudaMallocManaged(void** address, size_t size, unsigned flags) {
  SIMCUDA_CALL(device, {
    check(address != nullptr && size != 0);
    check(flags == cudaMemAttachGlobal || flags == cudaMemAttachHost);
    forbid_unsafe("cudaMallocManaged");
    Device& device = current_device();
    wake(device);
    *address = allocate_managed(size);
    add_allocation({static_cast<char*>(*address), size, Kind::managed, &device, flags});
  });
}

SIMCUDA_EXPORT cudaError_t cudaMallocPitch(void** address, size_t* pitch, size_t width, size_t height) {
  SIMCUDA_CALL(device, {
    check(pitch != nullptr);
    *pitch = round_up(width, pitch_alignment);
    return allocate(address, *pitch * height, "cudaMallocPitch");
  });
}

SIMCUDA_EXPORT cudaError_t cudaMalloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
  SIMCUDA_CALL(device, {
    check(pitched != nullptr);
    const std::size_t pitch = round_up(extent.width, pitch_alignment);
    *pitched = {nullptr, pitch, extent.width, extent.height};
    return allocate(&pitched->ptr, pitch * extent.height * extent.depth, "cudaMalloc3D");
  });
}

// CUDA Runtime API, "API synchronization behavior": the call waits for the device.
SIMCUDA_EXPORT cudaError_t cudaFree(void* address) {
  SIMCUDA_CALL(device, {
    if (address == nullptr) {
      wake(current_device());  // programs call cudaFree(0) to create the context
      return;
    }
    const auto found = find_allocation(address);
    check(found && found->base == address && found->kind != Kind::host && found->kind != Kind::registered &&
          found->kind != Kind::mapped && found->kind != Kind::opened && found->kind != Kind::variable);
    forbid_unsafe("cudaFree");
    drain(*found->device);
    if (found->kind == Kind::graph) {
      free_graph_memory(*found);
    } else {
      const auto allocation = remove_allocation(address, {Kind::device, Kind::managed, Kind::pool});
      check(allocation.has_value());  // otherwise another thread has freed it
      switch (allocation->kind) {
        case Kind::device:
          free_device(*allocation);
          break;
        case Kind::managed:
          munmap(allocation->base, allocation->size);
          break;
        default:
          free_in_pool(*allocation, nullptr);
          break;
      }
    }
    release_after_wait(*found->device);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  SIMCUDA_CALL(device, {
    Device& device = current_device();
    wake(device);
    if (free != nullptr) *free = arena_of(device).free();
    if (total != nullptr) *total = device.memory;
  });
}
