#include "graph_memory.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "arena.h"
#include "capture.h"
#include "context.h"
#include "error.h"
#include "pages.h"
#include "pools.h"

namespace simcuda {

namespace {

struct Use {
  std::uint64_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
};

// The allocation of an allocation node. One mutex guards the state of all blocks.
class Block : public std::enable_shared_from_this<Block> {
 public:
  static std::shared_ptr<Block> make(Device& device, std::size_t bytes);
  ~Block();

  bool back();  // takes device memory; false if there is none
  cudaError_t allocate();
  cudaError_t free();
  void trim();

  Device& device;
  const std::size_t size;
  char* base = nullptr;

  Block(Device& device, std::size_t bytes) : device(device), size(round_up(bytes, page_size)) {}

 private:
  bool backed_ = false;  // its memory is counted against the device
  bool live_ = false;    // allocated and not freed
};

struct GraphMemory {
  std::mutex mutex;
  std::vector<Use> use{static_cast<std::size_t>(device_count())};
  std::set<Block*> blocks;
  std::set<std::shared_ptr<Block>> live;  // blocks that outlive their graph
};
GraphMemory& graph_memory() {
  static auto* const memory = new GraphMemory;
  return *memory;
}
Use& use_of(const Device& device) { return graph_memory().use.at(static_cast<std::size_t>(device.index)); }

std::shared_ptr<Block> Block::make(Device& device, std::size_t bytes) {
  check(bytes != 0);
  auto block = std::make_shared<Block>(device, bytes);
  block->base = static_cast<char*>(arena_of(device).reserve(block->size));
  check(block->base != nullptr, cudaErrorMemoryAllocation);
  // The allocation table must not keep the block alive.
  auto weak = std::make_shared<std::weak_ptr<Block>>(block);
  add_allocation({block->base, bytes, Allocation::Kind::graph, &device, 0, 0, std::move(weak)});
  const std::lock_guard lock(graph_memory().mutex);
  graph_memory().blocks.insert(block.get());
  return block;
}

Block::~Block() {
  if (base == nullptr) return;
  remove_allocation(base, {Allocation::Kind::graph});
  const std::lock_guard lock(graph_memory().mutex);
  graph_memory().blocks.erase(this);
  arena_of(device).release(base, size);
  if (!backed_) return;
  arena_of(device).give_back(size);
  use_of(device).reserved -= size;
}

bool Block::back() {
  const std::lock_guard lock(graph_memory().mutex);
  if (backed_) return true;
  if (!arena_of(device).take(size)) return false;
  backed_ = true;
  Use& use = use_of(device);
  use.reserved += size;
  use.reserved_high = std::max(use.reserved_high, use.reserved);
  return true;
}

cudaError_t Block::allocate() {
  if (!back()) {
    trim_pools(device);
    if (!back()) return cudaErrorMemoryAllocation;
  }
  const std::lock_guard lock(graph_memory().mutex);
  if (live_) return cudaErrorInvalidValue;
  live_ = true;
  graph_memory().live.insert(shared_from_this());
  Use& use = use_of(device);
  use.used += size;
  use.used_high = std::max(use.used_high, use.used);
  return cudaSuccess;
}

cudaError_t Block::free() {
  const auto self = shared_from_this();  // outlives the lock
  const std::lock_guard lock(graph_memory().mutex);
  if (!live_) return cudaErrorInvalidValue;
  live_ = false;
  graph_memory().live.erase(self);
  use_of(device).used -= size;
  return cudaSuccess;
}

// The caller holds the mutex.
void Block::trim() {
  if (live_ || !backed_) return;
  arena_of(device).discard(base, size);
  arena_of(device).give_back(size);
  backed_ = false;
  use_of(device).reserved -= size;
}

// Throws Error(cudaErrorInvalidValue).
std::shared_ptr<Block> block_of(const Allocation& allocation) {
  check(allocation.kind == Allocation::Kind::graph);
  auto block = static_cast<std::weak_ptr<Block>*>(allocation.owner.get())->lock();
  check(block != nullptr);
  return block;
}

}  // namespace

Operation allocation_operation(Device& device, std::size_t bytes, void** address) {
  wake(device);
  auto block = Block::make(device, bytes);
  *address = block->base;
  Operation operation;
  operation.type = cudaGraphNodeTypeMemAlloc;
  operation.name = "allocate";
  operation.work = [] {};
  operation.params.type = cudaGraphNodeTypeMemAlloc;
  auto& params = operation.params.alloc;
  params.poolProps.allocType = cudaMemAllocationTypePinned;
  params.poolProps.location.type = cudaMemLocationTypeDevice;
  params.poolProps.location.id = device.index;
  params.bytesize = bytes;
  params.dptr = block->base;
  operation.at_launch = [block = block.get()] { return block->allocate(); };
  operation.kept = std::move(block);
  return operation;
}

Operation free_operation(void* address) {
  const auto found = find_allocation(address);
  check(found && found->base == address);
  auto block = block_of(*found);
  Operation operation;
  operation.type = cudaGraphNodeTypeMemFree;
  operation.name = "free";
  operation.work = [] {};
  operation.params.type = cudaGraphNodeTypeMemFree;
  operation.params.free.dptr = address;
  operation.at_launch = [block = block.get()] { return block->free(); };
  operation.kept = std::move(block);
  return operation;
}

cudaError_t capture_allocation(Stream& stream, Device& device, void** address, std::size_t bytes) {
  return submit(stream, allocation_operation(device, bytes, address));
}

cudaError_t capture_free(Stream& stream, void* address) { return submit(stream, free_operation(address)); }

void free_graph_memory(const Allocation& allocation) { check(block_of(allocation)->free()); }

void free_if_left(const Operation& operation) {
  if (operation.type == cudaGraphNodeTypeMemAlloc) static_cast<Block*>(operation.kept.get())->free();
}

void graph_memory_attribute(const Device& device, cudaGraphMemAttributeType which, void* value) {
  const std::lock_guard lock(graph_memory().mutex);
  const Use& use = use_of(device);
  auto& to = *static_cast<std::uint64_t*>(value);
  switch (which) {
    case cudaGraphMemAttrUsedMemCurrent:
      to = use.used;
      break;
    case cudaGraphMemAttrUsedMemHigh:
      to = use.used_high;
      break;
    case cudaGraphMemAttrReservedMemCurrent:
      to = use.reserved;
      break;
    case cudaGraphMemAttrReservedMemHigh:
      to = use.reserved_high;
      break;
    default:
      throw Error(cudaErrorInvalidValue);
  }
}

void reset_graph_memory_attribute(const Device& device, cudaGraphMemAttributeType which) {
  const std::lock_guard lock(graph_memory().mutex);
  Use& use = use_of(device);
  switch (which) {
    case cudaGraphMemAttrUsedMemHigh:
      use.used_high = use.used;
      break;
    case cudaGraphMemAttrReservedMemHigh:
      use.reserved_high = use.reserved;
      break;
    default:
      throw Error(cudaErrorInvalidValue);
  }
}

void trim_graph_memory(Device& device) {
  drain(device);  // what is freed may be used by replays that are queued
  const std::lock_guard lock(graph_memory().mutex);
  for (Block* block : graph_memory().blocks) {
    if (&block->device == &device) block->trim();
  }
}

}  // namespace simcuda
