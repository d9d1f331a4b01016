#include "buffers.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "clock.h"
#include "layouts.h"

namespace simcuda::cupti {

namespace {

struct Buffer {
  std::uint8_t* bytes = nullptr;
  std::size_t size = 0, most = 0;  // most: the maximum number of records, 0 for no limit
  std::size_t used = 0, count = 0;

  bool has_room(std::size_t needed) const { return used + needed <= size && (most == 0 || count < most); }
};

struct State {
  std::mutex mutex;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  Buffer current;             // `bytes` is null if there is none
  std::vector<Buffer> spare;  // several threads may request buffers at the same time
  std::vector<Buffer> full;   // to be returned to the program
  int giving = 0;             // number of threads that are returning a buffer
  std::condition_variable given;
  std::atomic<std::size_t> dropped{0};
};

State& state() {
  static State* const state = new State;  // never destroyed: activities are reported until the process ends
  return *state;
}

thread_local int giving_here = 0;

using Lock = std::unique_lock<std::mutex>;

void retire(State& state) {
  if (state.current.bytes != nullptr) state.full.push_back(std::exchange(state.current, {}));
}

void give_back(State& state, Lock& lock) {
  while (!state.full.empty()) {
    const Buffer buffer = state.full.front();
    state.full.erase(state.full.begin());
    const auto complete = state.complete;
    ++state.giving;
    ++giving_here;
    lock.unlock();
    complete(nullptr, 0, buffer.bytes, buffer.size, buffer.used);
    lock.lock();
    --giving_here;
    --state.giving;
    state.given.notify_all();
  }
}

// Makes `current` a buffer with room for `needed` bytes. Returns false if the program provides none.
bool find_room(State& state, Lock& lock, std::size_t needed, std::optional<Request>& asked) {
  while (!state.current.has_room(needed)) {
    retire(state);
    if (state.spare.empty()) {
      const auto request = state.request;
      if (request == nullptr) return false;
      Buffer made;
      lock.unlock();
      const std::uint64_t start = now();
      request(&made.bytes, &made.size, &made.most);
      asked = Request{start, now()};
      lock.lock();
      if (made.bytes == nullptr) return state.current.has_room(needed);
      state.spare.push_back(made);
    } else {
      state.current = state.spare.back();
      state.spare.pop_back();
      if (!state.current.has_room(needed)) {
        retire(state);  // the buffer is smaller than the record
        return false;
      }
    }
  }
  return true;
}

// Returns the size by the kind at the beginning of the record; 0 for an unknown kind.
std::size_t size_of(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER:
      return sizeof(CallRecord);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
      return sizeof(ExternalRecord);
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return sizeof(KernelRecord);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return sizeof(CopyRecord);
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return sizeof(PeerCopyRecord);
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return sizeof(FillRecord);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION:
      return sizeof(WaitRecord);
    case CUPTI_ACTIVITY_KIND_CUDA_EVENT:
      return sizeof(EventRecord);
    case CUPTI_ACTIVITY_KIND_OVERHEAD:
      return sizeof(OverheadRecord);
    default:
      return 0;
  }
}

}  // namespace

void set_buffer_callbacks(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete) {
  const Lock lock(state().mutex);
  state().request = request;
  state().complete = complete;
}

bool has_buffer_callbacks() {
  const Lock lock(state().mutex);
  return state().request != nullptr;
}

std::optional<Request> append(const void* record, std::size_t size) {
  State& all = state();
  const std::size_t needed = padded(size);
  std::optional<Request> asked;
  Lock lock(all.mutex);
  if (find_room(all, lock, needed, asked)) {
    Buffer& buffer = all.current;
    std::memcpy(buffer.bytes + buffer.used, record, size);
    std::memset(buffer.bytes + buffer.used + size, 0, needed - size);
    buffer.used += needed;
    ++buffer.count;
    if (buffer.count == buffer.most) retire(all);
  } else {
    ++all.dropped;
  }
  give_back(all, lock);
  return asked;
}

void flush() {
  State& all = state();
  Lock lock(all.mutex);
  retire(all);
  for (const Buffer& buffer : std::exchange(all.spare, {})) all.full.push_back(buffer);
  give_back(all, lock);
  all.given.wait(lock, [&] { return all.giving == giving_here; });
}

std::size_t take_dropped() { return state().dropped.exchange(0); }

CUptiResult next(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) {
  if (buffer == nullptr || record == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  auto* place = reinterpret_cast<std::uint8_t*>(*record);
  place = place == nullptr ? buffer : place + padded(size_of(**record));
  if (place >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  auto* const found = reinterpret_cast<CUpti_Activity*>(place);
  if (size_of(*found) == 0) return CUPTI_ERROR_INVALID_KIND;
  *record = found;
  return CUPTI_SUCCESS;
}

}  // namespace simcuda::cupti
