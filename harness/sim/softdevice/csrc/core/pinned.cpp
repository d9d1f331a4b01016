#include "pinned.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "capture.h"
#include "failure.h"
#include "faults.h"
#include "process.h"
#include "stream.h"

namespace soft {

namespace {

constexpr std::size_t alignment = 64;
constexpr int least_class = 9;  // 512 bytes
constexpr int most_class = 47;  // larger than any machine's memory

struct PinnedBlock {
  std::byte* address = nullptr;
  int size_class = 0;  // the size is 2 to the power of this
  bool allocated = false;
  bool of_capture = false;  // allocated while a stream was capturing
  bool kept = false;        // also used by a graph at each replay: never reused, as in torch's allocator
  std::vector<Stream*> users;
  std::vector<std::shared_ptr<Mark>> pending;  // marks to wait for before it is free

  std::size_t size() const { return std::size_t{1} << size_class; }
};

}  // namespace

// Never destroyed, including its contents: tensors may free memory until the very end of the process.
struct PinnedAllocator::State {
  // The caller of each of these holds the mutex.
  PinnedBlock* find(const void* address);
  void process();
  void make_free(PinnedBlock& block);

  mutable std::mutex mutex;
  std::map<std::byte*, PinnedBlock> blocks;
  std::array<std::vector<PinnedBlock*>, most_class + 1> free;  // by class
  std::deque<PinnedBlock*> pending;
  PinnedStatistics stats;
};

PinnedAllocator::PinnedAllocator() : state_(new State) {}

PinnedAllocator& PinnedAllocator::get() {
  static PinnedAllocator* const allocator = new PinnedAllocator;
  return *allocator;
}

void* PinnedAllocator::allocate(std::size_t bytes) {
  check_not_forked();
  if (bytes == 0) return nullptr;
  int size_class = least_class;
  while (size_class < most_class && std::size_t{1} << size_class < bytes) ++size_class;
  const auto refuse = [bytes] {
    throw OutOfMemory("soft out of host memory: tried to allocate " + std::to_string(bytes) +
                      " bytes of pinned memory");
  };
  if (std::size_t{1} << size_class < bytes) refuse();

  const bool of_capture = any_capture();
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  state.process();
  PinnedBlock* block = nullptr;
  auto& free = state.free[static_cast<std::size_t>(size_class)];
  if (!free.empty()) {
    block = free.back();
    free.pop_back();
  } else {
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, std::size_t{1} << size_class) != 0) refuse();
    block = &state.blocks[static_cast<std::byte*>(memory)];
    block->address = static_cast<std::byte*>(memory);
    block->size_class = size_class;
    state.stats.segment.change(1);
    state.stats.reserved_bytes.change(static_cast<std::int64_t>(block->size()));
    ++state.stats.num_host_alloc;
  }
  block->allocated = true;
  block->of_capture = of_capture;
  const auto size = static_cast<std::int64_t>(block->size());
  state.stats.allocation.change(1);
  state.stats.active_requests.change(1);
  state.stats.allocated_bytes.change(size);
  state.stats.active_bytes.change(size);
  return block->address;
}

void PinnedAllocator::free(void* address) {
  if (address == nullptr || forked()) return;
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  PinnedBlock* const block = state.find(address);
  if (block == nullptr || block->address != address || !block->allocated) {
    throw Failure(Code::invalid, "pinned memory was given back twice, or is none");
  }
  block->allocated = false;
  state.stats.allocation.change(-1);
  state.stats.allocated_bytes.change(-static_cast<std::int64_t>(block->size()));
  const auto users = std::exchange(block->users, {});
  if (block->kept) return;
  for (Stream* stream : users) {
    if (auto mark = stream->fence()) block->pending.push_back(std::move(mark));
  }
  if (block->pending.empty()) {
    state.make_free(*block);
  } else {
    state.pending.push_back(block);
  }
}

bool PinnedAllocator::record(const void* address, Stream& stream) {
  check_not_forked();
  const std::lock_guard lock(state_->mutex);
  PinnedBlock* const block = state_->find(address);
  if (block == nullptr || !block->allocated) return false;
  if (std::find(block->users.begin(), block->users.end(), &stream) == block->users.end()) {
    block->users.push_back(&stream);
  }
  if (block->of_capture && stream.capture()) block->kept = true;
  return true;
}

bool PinnedAllocator::owns(const void* address) const {
  check_not_forked();
  const std::lock_guard lock(state_->mutex);
  const PinnedBlock* const block = state_->find(address);
  return block != nullptr && block->allocated;
}

void PinnedAllocator::empty() {
  check_not_forked();
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  state.process();
  for (auto& blocks : state.free) {
    for (PinnedBlock* block : std::exchange(blocks, {})) {
      state.stats.segment.change(-1);
      state.stats.reserved_bytes.change(-static_cast<std::int64_t>(block->size()));
      ++state.stats.num_host_free;
      std::byte* const address = block->address;
      state.blocks.erase(address);
      std::free(address);
    }
  }
}

PinnedStatistics PinnedAllocator::statistics() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

void PinnedAllocator::reset_peak() {
  if (strikes(Fault::peak_not_reset)) return;
  const std::lock_guard lock(state_->mutex);
  PinnedStatistics& stats = state_->stats;
  for (Stat* stat : {&stats.allocation, &stats.active_requests, &stats.segment, &stats.allocated_bytes,
                     &stats.active_bytes, &stats.reserved_bytes}) {
    stat->peak = stat->current;
  }
}

void PinnedAllocator::reset_accumulated() {
  const std::lock_guard lock(state_->mutex);
  PinnedStatistics& stats = state_->stats;
  for (Stat* stat : {&stats.allocation, &stats.active_requests, &stats.segment, &stats.allocated_bytes,
                     &stats.active_bytes, &stats.reserved_bytes}) {
    stat->allocated = stat->freed = 0;
  }
  stats.num_host_alloc = stats.num_host_free = 0;
}

// Returns the block that contains the address; null if there is none.
PinnedBlock* PinnedAllocator::State::find(const void* address) {
  auto* const place = static_cast<std::byte*>(const_cast<void*>(address));
  const auto next = blocks.upper_bound(place);
  if (next == blocks.begin()) return nullptr;
  PinnedBlock& block = std::prev(next)->second;
  return place < block.address + block.size() ? &block : nullptr;
}

// Frees the blocks that their streams no longer use.
void PinnedAllocator::State::process() {
  const auto is_done = [](PinnedBlock* block) {
    auto& marks = block->pending;
    marks.erase(std::remove_if(marks.begin(), marks.end(), [](const auto& mark) { return mark->done(); }), marks.end());
    return marks.empty();
  };
  std::deque<PinnedBlock*> waiting;
  for (PinnedBlock* block : pending) {
    if (is_done(block)) {
      make_free(*block);
    } else {
      waiting.push_back(block);
    }
  }
  pending.swap(waiting);
}

void PinnedAllocator::State::make_free(PinnedBlock& block) {
  stats.active_requests.change(-1);
  stats.active_bytes.change(-static_cast<std::int64_t>(block.size()));
  free[static_cast<std::size_t>(block.size_class)].push_back(&block);
}

}  // namespace soft
