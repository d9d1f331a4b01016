#include "memory.h"

#include "arena.h"
#include "error.h"
#include "pages.h"
#include "pools.h"

namespace simcuda {

void* allocate_device(Device& device, std::size_t bytes) {
  Arena& arena = arena_of(device);
  check(bytes <= device.memory, cudaErrorMemoryAllocation);
  const std::size_t size = round_up(bytes, page_size);
  if (!arena.take(size)) {
    // Pools keep unused memory until another user needs it.
    trim_pools(device);
    check(arena.take(size), cudaErrorMemoryAllocation);
  }
  void* const memory = arena.reserve(size);
  if (memory == nullptr) {
    arena.give_back(size);
    throw Error(cudaErrorMemoryAllocation);
  }
  add_allocation({static_cast<char*>(memory), bytes, Allocation::Kind::device, &device});
  return memory;
}

void free_device(const Allocation& allocation) {
  Arena& arena = arena_of(*allocation.device);
  arena.release(allocation.base, allocation.size);
  arena.give_back(round_up(allocation.size, page_size));
}

}  // namespace simcuda
