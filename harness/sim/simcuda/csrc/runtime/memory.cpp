#include "memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "arena.h"
#include "call.h"
#include "capture.h"
#include "context.h"
#include "graph_memory.h"
#include "pages.h"
#include "pools.h"

namespace simcuda {

namespace {

using Kind = Allocation::Kind;

// Leaked, as all that is here.
struct Table {
  std::shared_mutex mutex;
  std::map<const char*, Allocation> allocations;
};
Table& table() {
  static Table* const table = new Table;
  return *table;
}

constexpr std::size_t pitch_alignment = 512;  // of cudaMallocPitch, on an H100

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

void add_allocation(Allocation allocation) {
  static std::atomic<unsigned long long> ids{0};
  allocation.id = ++ids;
  auto& [mutex, allocations] = table();
  const std::unique_lock lock(mutex);
  const auto next = allocations.lower_bound(allocation.base);
  if ((next != allocations.end() && next->first < allocation.base + allocation.size) ||
      (next != allocations.begin() && std::prev(next)->second.contains(allocation.base))) {
    throw Error(cudaErrorHostMemoryAlreadyRegistered);
  }
  allocations.emplace_hint(next, allocation.base, std::move(allocation));
}

std::optional<Allocation> remove_allocation(const void* address, std::initializer_list<Kind> kinds) {
  auto& [mutex, allocations] = table();
  const std::unique_lock lock(mutex);
  const auto found = allocations.find(static_cast<const char*>(address));
  if (found == allocations.end()) return std::nullopt;
  for (const Kind kind : kinds) {
    if (found->second.kind != kind) continue;
    Allocation allocation = std::move(found->second);
    allocations.erase(found);
    return allocation;
  }
  return std::nullopt;
}

std::optional<Allocation> find_allocation(const void* address) {
  auto& [mutex, allocations] = table();
  const std::shared_lock lock(mutex);
  const auto next = allocations.upper_bound(static_cast<const char*>(address));
  if (next == allocations.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(next)->second;
  return allocation.contains(address) ? std::optional(allocation) : std::nullopt;
}

void* allocate_device(Device& device, std::size_t bytes) {
  Arena& arena = arena_of(device);
  check(bytes <= device.memory, cudaErrorMemoryAllocation);
  const std::size_t size = round_up(bytes, page_size);
  if (!arena.take(size)) {
    // Pools keep what they do not use until another one wants it.
    trim_pools(device);
    check(arena.take(size), cudaErrorMemoryAllocation);
  }
  void* const memory = arena.reserve(size);
  if (memory == nullptr) {
    arena.give_back(size);
    throw Error(cudaErrorMemoryAllocation);
  }
  add_allocation({static_cast<char*>(memory), bytes, Kind::device, &device});
  return memory;
}

void free_device(const Allocation& allocation) {
  Arena& arena = arena_of(*allocation.device);
  arena.release(allocation.base, allocation.size);
  arena.give_back(round_up(allocation.size, page_size));
}

}  // namespace simcuda

using namespace simcuda;

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

// CUDA Runtime API, "API synchronization behavior": it waits for the device.
SIMCUDA_EXPORT cudaError_t cudaFree(void* address) {
  SIMCUDA_CALL(device, {
    if (address == nullptr) {
      wake(current_device());  // programs call cudaFree(0) to make the context
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
      check(allocation.has_value());  // otherwise another thread was faster
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
