#include "allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <map>
#include <set>
#include <utility>

#include "capture.h"
#include "failure.h"
#include "faults.h"
#include "process.h"

namespace soft {

namespace {

struct Pool;

// Orders free blocks by stream, size and address: the first match is the smallest at the lowest address.
struct BySize {
  bool operator()(const Block* left, const Block* right) const;
};
using FreeBlocks = std::set<Block*, BySize>;

struct Pool {
  PoolId id{0, 0};
  FreeBlocks small, large;
  std::size_t segments = 0;
  int retained = 0;

  FreeBlocks& of(bool is_large) { return is_large ? large : small; }
};

}  // namespace

// A part of a segment: in use, free, or freed while other streams still use it.
struct Block {
  std::byte* address = nullptr;
  std::size_t size = 0, requested = 0;
  const Stream* stream = nullptr;
  Pool* pool = nullptr;
  bool large = false;
  bool free = false;                          // in the pool's set of free blocks
  int owners = 0;                             // 1 while it is in use; more if a fault has allocated it again
  std::uint64_t serial = 0;                   // of its allocation
  std::vector<Stream*> users;                 // other streams that were recorded
  int pending = 0;                            // marks that were not done when it was freed
  Block *before = nullptr, *after = nullptr;  // neighbours in its segment

  bool split() const { return before != nullptr || after != nullptr; }
};

namespace {

bool BySize::operator()(const Block* left, const Block* right) const {
  if (left->stream != right->stream) return std::less<const Stream*>()(left->stream, right->stream);
  if (left->size != right->size) return left->size < right->size;
  return std::less<const std::byte*>()(left->address, right->address);
}

struct Segment {
  std::size_t size;
  const Stream* stream;
  bool large;
  Pool* pool;
  Block* first;
};

std::size_t round_up(std::size_t size, std::size_t to) { return (size + to - 1) / to * to; }

std::size_t segment_size(std::size_t size) {
  if (size <= Allocator::small_limit) return Allocator::small_segment;
  if (size < Allocator::large_limit) return Allocator::large_segment;
  return round_up(size, Allocator::large_rounding);
}

void change(Stats3& stats, bool large, std::int64_t amount) {
  stats[all].change(amount);
  stats[large ? large_pool : small_pool].change(amount);
}

std::string readable(std::size_t bytes) {
  static constexpr std::pair<const char*, int> units[] = {{"GiB", 30}, {"MiB", 20}, {"KiB", 10}};
  for (const auto& [unit, bits] : units) {
    if (bytes < std::size_t{1} << bits) continue;
    char text[48];
    const double amount = static_cast<double>(bytes) / static_cast<double>(std::size_t{1} << bits);
    std::snprintf(text, sizeof text, "%.2f %s", amount, unit);
    return text;
  }
  return std::to_string(bytes) + " bytes";
}

}  // namespace

struct Allocator::State {
  State(DeviceState& its_device, Streams& its_streams, std::size_t bytes)
      : device(its_device), streams(its_streams), capacity(bytes) {
    pools[{0, 0}].retained = 1;
  }

  // The caller of each of these holds the mutex.
  Pool& pool(PoolId id);
  Block* find(Pool& pool, const Stream& stream, std::size_t size, bool large);
  Block* grow(Pool& pool, const Stream& stream, std::size_t size, bool large);
  Block* find_in_use(const Stream& stream, std::size_t size, bool large);
  void split(Block* block, std::size_t size);
  void put(Block* block);
  void take(Block* block);
  void merge(Block* left, Block* right);
  void give_back(Block* block);
  void await_users(Block* block);
  void process(bool waiting);
  void release_free(Pool& pool);
  void release_cached();
  void forget_if_unused(PoolId id);
  std::string shortage(std::size_t bytes) const;

  DeviceState& device;
  Streams& streams;
  const std::size_t capacity;
  mutable std::mutex mutex;
  std::map<std::byte*, Segment> segments;
  std::map<PoolId, Pool> pools;
  std::vector<std::pair<const Stream*, PoolId>> routes;  // the latest comes last
  // Blocks freed while other streams use them: per stream, in the order of its marks.
  std::vector<std::pair<const Stream*, std::deque<std::pair<std::shared_ptr<Mark>, Block*>>>> pending;
  std::vector<Block*> deferred;  // freed while a stream that uses them is capturing
  std::size_t reserved = 0;
  std::uint64_t serial = 0;
  Statistics stats;
};

Allocator::Allocator(DeviceState& device, Streams& streams, std::size_t capacity)
    : state_(std::make_unique<State>(device, streams, capacity)) {}

Allocator::~Allocator() {
  for (const auto& [address, segment] : state_->segments) {
    for (Block* block = segment.first; block != nullptr;) delete std::exchange(block, block->after);
    munmap(address, segment.size);
  }
}

Block* Allocator::allocate(std::size_t bytes, Stream& stream) {
  State& state = *state_;
  if (&stream.device() != &state.device) {
    throw Failure(Code::invalid, "cannot allocate memory of device " + std::to_string(state.device.index()) +
                                     " for a stream of device " + std::to_string(stream.device().index()));
  }
  const auto capture = stream.capture();
  const std::lock_guard lock(state.mutex);
  state.process(false);
  PoolId id{0, 0};
  if (capture) {
    id = capture->pool();
  } else {
    const auto route = std::find_if(state.routes.rbegin(), state.routes.rend(),
                                    [&](const auto& each) { return each.first == &stream; });
    if (route != state.routes.rend()) id = route->second;
  }
  // A size above the device's capacity fails anyway, and rounding it might overflow.
  const std::size_t size = bytes > state.capacity ? bytes : std::max(round_up(bytes, rounding), rounding);
  const bool large = size > small_limit;

  Block* block = nullptr;
  if (injected(Fault::block_given_twice)) {
    block = state.find_in_use(stream, size, large);
    if (block != nullptr && strikes(Fault::block_given_twice)) {
      ++block->owners;
      change(state.stats.allocation, large, 1);
      change(state.stats.allocated_bytes, large, static_cast<std::int64_t>(block->size));
      return block;
    }
  }
  Pool& pool = state.pool(id);
  block = state.find(pool, stream, size, large);
  if (block == nullptr) block = state.grow(pool, stream, size, large);
  if (block == nullptr) {
    ++state.stats.num_alloc_retries;
    state.process(true);
    block = state.find(pool, stream, size, large);
  }
  if (block == nullptr) {
    state.release_cached();
    block = state.grow(pool, stream, size, large);
  }
  if (block == nullptr) {
    ++state.stats.num_ooms;
    throw OutOfMemory(state.shortage(bytes));
  }
  state.take(block);
  const std::size_t remaining = block->size - size;
  if (large ? remaining > small_limit : remaining >= rounding) state.split(block, size);
  block->owners = 1;
  block->requested = bytes;
  block->serial = ++state.serial;
  const auto taken = static_cast<std::int64_t>(block->size);
  change(state.stats.allocation, large, 1);
  change(state.stats.allocated_bytes, large, taken);
  change(state.stats.active, large, 1);
  change(state.stats.active_bytes, large, taken);
  change(state.stats.requested_bytes, large, static_cast<std::int64_t>(bytes));
  return block;
}

void Allocator::free(Block* block) {
  if (forked()) return;  // it is the parent's memory, and a thread that does not exist here may hold the lock
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (block->owners == 0) throw Failure(Code::invalid, "a block of memory was given back twice");
  change(state.stats.allocation, block->large, -1);
  if (!strikes(Fault::statistics_drift)) {
    change(state.stats.allocated_bytes, block->large, -static_cast<std::int64_t>(block->size));
  }
  if (--block->owners != 0) return;
  if (block->users.empty()) {
    state.give_back(block);
  } else {
    state.await_users(block);
  }
  state.process(false);
}

void Allocator::record(Block* block, Stream& stream) {
  if (forked() || strikes(Fault::record_stream_ignored)) return;
  const std::lock_guard lock(state_->mutex);
  auto& users = block->users;
  if (&stream != block->stream && std::find(users.begin(), users.end(), &stream) == users.end()) {
    users.push_back(&stream);
  }
}

void* Allocator::data(const Block* block) { return block->address; }
std::size_t Allocator::size(const Block* block) { return block->size; }

void Allocator::empty(PoolId id) {
  check_not_forked();
  forbid_while_capturing("emptying the cache");
  if (strikes(Fault::memory_not_returned)) return;
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  state.process(true);
  if (id == PoolId{0, 0}) {
    state.release_cached();
  } else if (const auto found = state.pools.find(id); found != state.pools.end()) {
    state.streams.drain();
    state.release_free(found->second);
    state.forget_if_unused(id);
  }
}

Statistics Allocator::statistics() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

std::vector<SegmentView> Allocator::snapshot() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<SegmentView> views;
  for (const auto& [address, segment] : state_->segments) {
    SegmentView view{reinterpret_cast<std::size_t>(address),
                     segment.size,
                     segment.stream->id(),
                     segment.large,
                     segment.pool->id,
                     {}};
    for (const Block* block = segment.first; block != nullptr; block = block->after) {
      view.blocks.push_back({reinterpret_cast<std::size_t>(block->address), block->size,
                             block->free ? 0 : block->requested, block->owners != 0, !block->free});
    }
    views.push_back(std::move(view));
  }
  return views;
}

namespace {

template <typename Change>
void for_each_stat(Statistics& stats, Change change) {
  for (Stats3* each :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    for (Stat& stat : *each) change(stat);
  }
}

}  // namespace

void Allocator::reset_peak() {
  if (strikes(Fault::peak_not_reset)) return;
  const std::lock_guard lock(state_->mutex);
  for_each_stat(state_->stats, [](Stat& stat) { stat.peak = stat.current; });
}

void Allocator::reset_accumulated() {
  const std::lock_guard lock(state_->mutex);
  Statistics& stats = state_->stats;
  for_each_stat(stats, [](Stat& stat) { stat.allocated = stat.freed = 0; });
  stats.num_alloc_retries = stats.num_ooms = stats.num_sync_all_streams = 0;
  stats.num_device_alloc = stats.num_device_free = 0;
}

std::pair<std::size_t, std::size_t> Allocator::memory() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->capacity - state_->reserved, state_->capacity};
}

bool Allocator::owns(const void* address) const {
  const std::lock_guard lock(state_->mutex);
  auto* const place = static_cast<std::byte*>(const_cast<void*>(address));
  const auto next = state_->segments.upper_bound(place);
  if (next == state_->segments.begin()) return false;
  const auto& [begin, segment] = *std::prev(next);
  return place < begin + segment.size;
}

void Allocator::retain(PoolId id) {
  const std::lock_guard lock(state_->mutex);
  ++state_->pool(id).retained;
}

void Allocator::release(PoolId id) {
  if (forked()) return;
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->pools.find(id);
  if (found == state_->pools.end() || found->second.retained == 0) {
    throw Failure(Code::invalid, "a pool of memory was released more often than retained");
  }
  --found->second.retained;
  state_->forget_if_unused(id);
}

void Allocator::route(Stream& stream, PoolId pool) {
  const std::lock_guard lock(state_->mutex);
  state_->routes.emplace_back(&stream, pool);
}

void Allocator::unroute(Stream& stream) {
  const std::lock_guard lock(state_->mutex);
  auto& routes = state_->routes;
  const auto last =
      std::find_if(routes.rbegin(), routes.rend(), [&](const auto& each) { return each.first == &stream; });
  if (last == routes.rend()) throw Failure(Code::invalid, "a stream's allocations were not sent to any pool");
  const PoolId pool = last->second;
  routes.erase(std::next(last).base());
  state_->forget_if_unused(pool);
}

Pool& Allocator::State::pool(PoolId id) {
  Pool& pool = pools[id];
  pool.id = id;
  return pool;
}

Block* Allocator::State::find(Pool& pool, const Stream& stream, std::size_t size, bool large) {
  Block wanted;
  wanted.stream = &stream;
  wanted.size = size;
  const FreeBlocks& blocks = pool.of(large);
  const auto found = blocks.lower_bound(&wanted);
  return found != blocks.end() && (*found)->stream == &stream ? *found : nullptr;
}

// Returns a free block that is a new segment; null if the device has no room for it.
Block* Allocator::State::grow(Pool& pool, const Stream& stream, std::size_t size, bool large) {
  device.check();
  if (size > capacity) return nullptr;
  const std::size_t bytes = segment_size(size);
  if (bytes > capacity - reserved) return nullptr;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* const block = new Block;
  block->address = static_cast<std::byte*>(memory);
  block->size = bytes;
  block->stream = &stream;
  block->pool = &pool;
  block->large = large;
  segments.emplace(block->address, Segment{bytes, &stream, large, &pool, block});
  ++pool.segments;
  reserved += bytes;
  change(stats.segment, large, 1);
  change(stats.reserved_bytes, large, static_cast<std::int64_t>(bytes));
  ++stats.num_device_alloc;
  put(block);
  return block;
}

// Returns the block in use that fits and was allocated last.
Block* Allocator::State::find_in_use(const Stream& stream, std::size_t size, bool large) {
  Block* latest = nullptr;
  for (const auto& [address, segment] : segments) {
    if (segment.large != large || segment.stream != &stream) continue;
    for (Block* block = segment.first; block != nullptr; block = block->after) {
      if (block->owners == 0 || block->size < size) continue;
      if (latest == nullptr || block->serial > latest->serial) latest = block;
    }
  }
  return latest;
}

// Makes a free block of the bytes after the first `size`.
void Allocator::State::split(Block* block, std::size_t size) {
  auto* const rest = new Block;
  rest->address = block->address + size;
  rest->size = block->size - size;
  rest->stream = block->stream;
  rest->pool = block->pool;
  rest->large = block->large;
  rest->before = block;
  rest->after = block->after;
  if (rest->after != nullptr) rest->after->before = rest;
  block->after = rest;
  block->size = size;
  put(rest);
}

void Allocator::State::put(Block* block) {
  block->free = true;
  block->pool->of(block->large).insert(block);
  if (block->split()) {
    change(stats.inactive_split, block->large, 1);
    change(stats.inactive_split_bytes, block->large, static_cast<std::int64_t>(block->size));
  }
}

void Allocator::State::take(Block* block) {
  block->free = false;
  block->pool->of(block->large).erase(block);
  if (block->split()) {
    change(stats.inactive_split, block->large, -1);
    change(stats.inactive_split_bytes, block->large, -static_cast<std::int64_t>(block->size));
  }
}

// Merges two neighbours, both already taken from their set.
void Allocator::State::merge(Block* left, Block* right) {
  left->size += right->size;
  left->after = right->after;
  if (left->after != nullptr) left->after->before = left;
  delete right;
}

// Makes the block free; no stream uses it any more.
void Allocator::State::give_back(Block* block) {
  change(stats.active, block->large, -1);
  change(stats.active_bytes, block->large, -static_cast<std::int64_t>(block->size));
  change(stats.requested_bytes, block->large, -static_cast<std::int64_t>(block->requested));
  if (Block* const before = block->before; before != nullptr && before->free) {
    take(before);
    merge(before, block);
    block = before;
  }
  if (Block* const after = block->after; after != nullptr && after->free) {
    take(after);
    merge(block, after);
  }
  put(block);
}

void Allocator::State::await_users(Block* block) {
  // Work of a capturing stream is not in its queue, so it cannot be waited for. Within the graph, other work that does
  // not know about this use must not get the block.
  const auto is_captured = [](const Stream* stream) { return stream->capture() != nullptr; };
  if (any_capture() && std::any_of(block->users.begin(), block->users.end(), is_captured)) {
    deferred.push_back(block);
    return;
  }
  for (Stream* stream : std::exchange(block->users, {})) {
    auto mark = stream->fence();
    if (!mark) continue;
    auto queue = std::find_if(pending.begin(), pending.end(), [&](const auto& each) { return each.first == stream; });
    if (queue == pending.end()) queue = pending.insert(pending.end(), {stream, {}});
    queue->second.emplace_back(std::move(mark), block);
    ++block->pending;
  }
  if (block->pending == 0) give_back(block);
}

// Frees the blocks that other streams no longer use. With `waiting`, waits for these streams and frees all blocks,
// except those used in a running capture.
void Allocator::State::process(bool waiting) {
  for (Block* block : std::exchange(deferred, {})) await_users(block);
  for (auto& [stream, queue] : pending) {
    while (!queue.empty()) {
      const auto& [mark, block] = queue.front();
      if (waiting) {
        mark->wait();
      } else if (!mark->done()) {
        break;
      }
      if (--block->pending == 0) give_back(block);
      queue.pop_front();
    }
  }
}

// The caller has waited for the device.
void Allocator::State::release_free(Pool& pool) {
  for (FreeBlocks* blocks : {&pool.small, &pool.large}) {
    for (auto each = blocks->begin(); each != blocks->end();) {
      Block* const block = *each;
      if (block->split()) {
        ++each;
        continue;
      }
      each = blocks->erase(each);
      munmap(block->address, block->size);
      segments.erase(block->address);
      --pool.segments;
      reserved -= block->size;
      change(stats.segment, block->large, -1);
      change(stats.reserved_bytes, block->large, -static_cast<std::int64_t>(block->size));
      ++stats.num_device_free;
      delete block;
    }
  }
}

// Releases the device's own pool, and pools without a user.
void Allocator::State::release_cached() {
  streams.drain();
  ++stats.num_sync_all_streams;
  std::vector<PoolId> unretained;
  for (auto& [id, pool] : pools) {
    if (id != PoolId{0, 0} && pool.retained != 0) continue;
    release_free(pool);
    unretained.push_back(id);
  }
  for (const PoolId& id : unretained) forget_if_unused(id);
}

void Allocator::State::forget_if_unused(PoolId id) {
  const auto found = pools.find(id);
  if (found != pools.end() && found->second.retained == 0 && found->second.segments == 0) pools.erase(found);
}

std::string Allocator::State::shortage(std::size_t bytes) const {
  std::size_t allocated = 0, free = 0;
  for (const auto& [address, segment] : segments) {
    for (const Block* block = segment.first; block != nullptr; block = block->after) {
      (block->free ? free : allocated) += block->size;
    }
  }
  return "soft out of memory: tried to allocate " + readable(bytes) + "; device " + std::to_string(device.index()) +
         " has " + readable(capacity) + " total, " + readable(capacity - reserved) + " free, " + readable(allocated) +
         " allocated, " + readable(free) + " reserved but unallocated";
}

}  // namespace soft
