#include "pools.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "allocations.h"
#include "arena.h"
#include "error.h"
#include "handles.h"
#include "pages.h"

namespace simcuda {

namespace {

constexpr std::size_t chunk_bytes = std::size_t{32} << 20, rounding = 512;

// Never destroyed, since memory may be freed until the very end of the process.
Handles<Pool>& pools() {
  static auto* const pools = new Handles<Pool>;
  return *pools;
}

// By device index: the default pools, the current pools, and all pools.
struct PoolTable {
  std::mutex mutex;
  std::vector<std::shared_ptr<Pool>> defaults{static_cast<std::size_t>(device_count())};
  std::vector<std::shared_ptr<Pool>> current{static_cast<std::size_t>(device_count())};
  std::vector<std::weak_ptr<Pool>> all;
};
PoolTable& pool_table() {
  static auto* const table = new PoolTable;
  return *table;
}

// Most programs use no pool, and then waiting has no extra cost.
std::atomic<bool> any_used{false};

std::shared_ptr<Pool> make_pool(Device& device, std::size_t most) {
  auto pool = std::make_shared<Pool>(device, most);
  pools().add(pool);
  std::erase_if(pool_table().all, [](const auto& each) { return each.expired(); });
  pool_table().all.push_back(pool);
  return pool;
}

template <typename Use>
void for_each_pool(Device& device, Use use) {
  std::vector<std::shared_ptr<Pool>> all;
  {
    const std::lock_guard lock(pool_table().mutex);
    for (const auto& each : pool_table().all) {
      if (auto pool = each.lock(); pool && &pool->device() == &device) all.push_back(std::move(pool));
    }
  }
  for (const auto& pool : all) use(*pool);
}

}  // namespace

bool Pool::Piece::ready() {
  std::erase_if(marks, [](const auto& mark) { return mark->done(); });
  if (marks.empty()) stream = 0;
  return marks.empty();
}

// All of the pool's memory has been freed, but streams may still be using it.
Pool::~Pool() {
  Arena& arena = arena_of(device_);
  for (auto& [address, chunk] : chunks_) {
    for (auto& [begin, piece] : chunk.pieces) {
      for (const auto& mark : piece.marks) mark->wait();
    }
    arena.release(address, chunk.size);
    arena.give_back(chunk.size);
  }
}

bool Pool::grow(std::size_t bytes) {
  Arena& arena = arena_of(device_);
  for (const std::size_t least : {chunk_bytes, huge_page_size}) {
    const std::size_t size = std::max(least, round_up(bytes, huge_page_size));
    if (most_ != 0 && (size > most_ || reserved_ > most_ - size)) continue;
    if (!arena.take(size)) continue;
    char* const memory = static_cast<char*>(arena.reserve(size));
    if (memory == nullptr) {
      arena.give_back(size);
      continue;
    }
    Chunk& chunk = chunks_[memory];
    chunk.size = size;
    chunk.pieces[memory].size = size;
    reserved_ += size;
    reserved_high_ = std::max(reserved_high_, reserved_);
    return true;
  }
  return false;
}

char* Pool::cut(Chunk& chunk, std::map<char*, Piece>::iterator piece, std::size_t bytes) {
  if (piece->second.size > bytes) {
    Piece rest = piece->second;
    rest.size -= bytes;
    chunk.pieces.emplace(piece->first + bytes, std::move(rest));
  }
  piece->second = {bytes, false, 0, {}};
  used_ += bytes;
  used_high_ = std::max(used_high_, used_);
  return piece->first;
}

// Returns the smallest piece that fits, at the lowest address.
char* Pool::find(std::size_t bytes, const Stream& stream) {
  Chunk* of = nullptr;
  std::map<char*, Piece>::iterator best;
  for (auto& [address, chunk] : chunks_) {
    join(chunk);
    for (auto each = chunk.pieces.begin(); each != chunk.pieces.end(); ++each) {
      Piece& piece = each->second;
      if (!piece.free || piece.size < bytes || (of != nullptr && piece.size >= best->second.size)) continue;
      if (!piece.marks.empty() && piece.stream != stream.id()) continue;
      of = &chunk;
      best = each;
    }
  }
  return of == nullptr ? nullptr : cut(*of, best, bytes);
}

// Returns free pieces that may belong to other streams, and makes the stream wait for these.
char* Pool::find_with_wait(std::size_t bytes, Stream& stream) {
  if (!reuse_[2]) return nullptr;
  for (auto& [address, chunk] : chunks_) {
    for (auto first = chunk.pieces.begin(); first != chunk.pieces.end(); ++first) {
      std::size_t size = 0;
      auto last = first;
      for (; last != chunk.pieces.end() && last->second.free && size < bytes; ++last) size += last->second.size;
      if (size < bytes) continue;
      std::vector<std::shared_ptr<Mark>> marks;
      for (auto each = first; each != last; ++each) {
        marks.insert(marks.end(), each->second.marks.begin(), each->second.marks.end());
      }
      for (const auto& mark : marks) stream.wait(mark);
      chunk.pieces.erase(std::next(first), last);
      first->second = {size, true, 0, {}};
      return cut(chunk, first, bytes);
    }
  }
  return nullptr;
}

void* Pool::allocate(std::size_t bytes, Stream& stream) {
  any_used.store(true, std::memory_order_relaxed);
  check(bytes <= device_.memory, cudaErrorMemoryAllocation);
  const std::size_t size = round_up(bytes, rounding);
  char* memory;
  {
    const std::lock_guard lock(mutex_);
    memory = find(size, stream);
    if (memory == nullptr && grow(size)) memory = find(size, stream);
  }
  if (memory == nullptr) {
    trim_pools(device_);
    const std::lock_guard lock(mutex_);
    if (grow(size)) memory = find(size, stream);
    if (memory == nullptr) memory = find_with_wait(size, stream);
  }
  check(memory != nullptr, cudaErrorMemoryAllocation);
  try {
    add_allocation({memory, bytes, Allocation::Kind::pool, &device_, 0, 0, shared_from_this()});
  } catch (...) {
    free(memory, nullptr);
    throw;
  }
  return memory;
}

// Joins adjacent free pieces that were freed by the same stream.
void Pool::join(Chunk& chunk) {
  auto& pieces = chunk.pieces;
  for (auto left = pieces.begin(); left != pieces.end();) {
    const auto right = std::next(left);
    if (left->second.free) left->second.ready();
    if (right == pieces.end()) return;
    if (right->second.free) right->second.ready();
    if (left->second.free && right->second.free && left->second.stream == right->second.stream) {
      left->second.size += right->second.size;
      auto& marks = right->second.marks;
      left->second.marks.insert(left->second.marks.end(), marks.begin(), marks.end());
      pieces.erase(right);
    } else {
      left = right;
    }
  }
}

void Pool::free(char* address, Stream* stream) {
  // Created before taking the lock: a mark waits for nothing, but streams have their own locks.
  const auto mark = stream == nullptr ? nullptr : stream->mark();
  const std::lock_guard lock(mutex_);
  const auto chunk = std::prev(chunks_.upper_bound(address));
  const auto piece = chunk->second.pieces.find(address);
  used_ -= piece->second.size;
  piece->second.free = true;
  if (mark != nullptr && !mark->done()) {
    piece->second.stream = stream->id();
    piece->second.marks = {mark};
  }
}

void Pool::drop(std::size_t keep) {
  Arena& arena = arena_of(device_);
  for (auto chunk = chunks_.begin(); chunk != chunks_.end() && reserved_ > keep;) {
    auto& pieces = chunk->second.pieces;
    const bool unused =
        std::all_of(pieces.begin(), pieces.end(), [](auto& each) { return each.second.free && each.second.ready(); });
    if (!unused) {
      ++chunk;
      continue;
    }
    arena.release(chunk->first, chunk->second.size);
    arena.give_back(chunk->second.size);
    reserved_ -= chunk->second.size;
    chunk = chunks_.erase(chunk);
  }
}

void Pool::trim(std::size_t keep) {
  const std::lock_guard lock(mutex_);
  drop(keep);
}

void Pool::trim_to_threshold() {
  const std::lock_guard lock(mutex_);
  if (reserved_ > threshold_) drop(threshold_);
}

void Pool::attribute(cudaMemPoolAttr which, void* value) {
  const std::lock_guard lock(mutex_);
  const auto bytes = [&](std::uint64_t is) { *static_cast<std::uint64_t*>(value) = is; };
  switch (which) {
    case cudaMemPoolReuseFollowEventDependencies:
      *static_cast<int*>(value) = reuse_[0];
      break;
    case cudaMemPoolReuseAllowOpportunistic:
      *static_cast<int*>(value) = reuse_[1];
      break;
    case cudaMemPoolReuseAllowInternalDependencies:
      *static_cast<int*>(value) = reuse_[2];
      break;
    case cudaMemPoolAttrReleaseThreshold:
      bytes(threshold_);
      break;
    case cudaMemPoolAttrReservedMemCurrent:
      bytes(reserved_);
      break;
    case cudaMemPoolAttrReservedMemHigh:
      bytes(reserved_high_);
      break;
    case cudaMemPoolAttrUsedMemCurrent:
      bytes(used_);
      break;
    case cudaMemPoolAttrUsedMemHigh:
      bytes(used_high_);
      break;
    default:
      throw Error(cudaErrorInvalidValue);
  }
}

void Pool::set_attribute(cudaMemPoolAttr which, const void* value) {
  const std::lock_guard lock(mutex_);
  // A high-water mark can only be set to 0, which resets it to the current value.
  const auto reset = [&](std::uint64_t& high, std::uint64_t current) {
    check(*static_cast<const std::uint64_t*>(value) == 0);
    high = current;
  };
  switch (which) {
    case cudaMemPoolReuseFollowEventDependencies:
      reuse_[0] = *static_cast<const int*>(value);
      break;
    case cudaMemPoolReuseAllowOpportunistic:
      reuse_[1] = *static_cast<const int*>(value);
      break;
    case cudaMemPoolReuseAllowInternalDependencies:
      reuse_[2] = *static_cast<const int*>(value);
      break;
    case cudaMemPoolAttrReleaseThreshold:
      threshold_ = *static_cast<const std::uint64_t*>(value);
      break;
    case cudaMemPoolAttrReservedMemHigh:
      reset(reserved_high_, reserved_);
      break;
    case cudaMemPoolAttrUsedMemHigh:
      reset(used_high_, used_);
      break;
    default:
      throw Error(cudaErrorInvalidValue);
  }
}

void Pool::set_access(const cudaMemAccessDesc& access) {
  check(access.location.type == cudaMemLocationTypeDevice);
  check(access.location.id >= 0 && access.location.id < device_count(), cudaErrorInvalidDevice);
  check(access.flags == cudaMemAccessFlagsProtNone || access.flags == cudaMemAccessFlagsProtRead ||
        access.flags == cudaMemAccessFlagsProtReadWrite);
  // The access of the device that has the memory cannot be removed.
  check(access.location.id != device_.index || access.flags == cudaMemAccessFlagsProtReadWrite);
  const std::lock_guard lock(mutex_);
  access_[access.location.id] = access.flags;
}

cudaMemAccessFlags Pool::access(int device) {
  if (device == device_.index) return cudaMemAccessFlagsProtReadWrite;
  const std::lock_guard lock(mutex_);
  const auto found = access_.find(device);
  return found == access_.end() ? cudaMemAccessFlagsProtNone : found->second;
}

std::shared_ptr<Pool> find_pool(cudaMemPool_t handle) {
  auto pool = pools().find(handle);
  check(pool != nullptr);
  return pool;
}

std::shared_ptr<Pool> default_pool(Device& device) {
  const std::lock_guard lock(pool_table().mutex);
  auto& pool = pool_table().defaults.at(static_cast<std::size_t>(device.index));
  if (!pool) pool = make_pool(device, 0);
  return pool;
}

std::shared_ptr<Pool> current_pool(Device& device) {
  auto fallback = default_pool(device);
  const std::lock_guard lock(pool_table().mutex);
  const auto& current = pool_table().current.at(static_cast<std::size_t>(device.index));
  return current ? current : fallback;
}

std::shared_ptr<Pool> create_pool(Device& device, std::size_t most) {
  const std::lock_guard lock(pool_table().mutex);
  return make_pool(device, most);
}

void set_current_pool(const std::shared_ptr<Pool>& pool) {
  const std::lock_guard lock(pool_table().mutex);
  pool_table().current.at(static_cast<std::size_t>(pool->device().index)) = pool;
}

void destroy_pool(const std::shared_ptr<Pool>& pool) {
  const auto index = static_cast<std::size_t>(pool->device().index);
  {
    const std::lock_guard lock(pool_table().mutex);
    check(pool_table().defaults.at(index) != pool);
    if (auto& current = pool_table().current.at(index); current == pool) current.reset();
  }
  pools().remove(pool->handle());
}

void release_after_wait(Device& device) {
  if (!any_used.load(std::memory_order_relaxed)) return;
  for_each_pool(device, [](Pool& pool) { pool.trim_to_threshold(); });
}

void trim_pools(Device& device) {
  for_each_pool(device, [](Pool& pool) { pool.trim(0); });
}

void free_in_pool(const Allocation& allocation, Stream* stream) {
  static_cast<Pool*>(allocation.owner.get())->free(allocation.base, stream);
}

}  // namespace simcuda
