#include "records.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "simcuda_activity.h"

namespace simcuda::cupti {

namespace {

// The newest layouts that the headers have: each begins with those before it.
#if CUPTI_API_VERSION >= 130000
using Kernel = CUpti_ActivityKernel10;
#else
using Kernel = CUpti_ActivityKernel9;
#endif
#if CUPTI_API_VERSION >= 130000
using Memcpy = CUpti_ActivityMemcpy6;
#else
using Memcpy = CUpti_ActivityMemcpy5;
#endif
using Memset = CUpti_ActivityMemset4;

constexpr std::uint32_t legacy_stream = 7;  // CUPTI's number of the legacy default stream
constexpr std::uint32_t first_stream = 13;  // created streams come behind it, as on a GPU
constexpr std::size_t alignment = ACTIVITY_RECORD_ALIGNMENT;
constexpr std::size_t most_kinds = 64;

constexpr std::size_t padded(std::size_t size) { return (size + alignment - 1) / alignment * alignment; }

struct State {
  std::mutex mutex;
  std::set<CUpti_CallbackId> left_out;
  CUpti_BuffersCallbackRequestFunc request = nullptr;
  CUpti_BuffersCallbackCompleteFunc complete = nullptr;
  // The program's, which is being filled; null if there is none.
  std::uint8_t* buffer = nullptr;
  std::size_t size = 0, used = 0, most = 0, count = 0;
  std::size_t dropped = 0;  // records for which the program had no buffer

  // The caller of these holds the mutex. Programs want a buffer to be asked for when the first record is there.
  template <typename Record>
  void add(const Record& record) {
    constexpr std::size_t needed = padded(sizeof record);
    if (buffer != nullptr && (used + needed > size || (most != 0 && count >= most))) finish();
    if (buffer == nullptr && request != nullptr) request(&buffer, &size, &most);
    if (buffer == nullptr || used + needed > size) {
      ++dropped;
      return;
    }
    std::memcpy(buffer + used, &record, sizeof record);
    used += needed;
    ++count;
  }
  void finish() {
    if (buffer == nullptr) return;
    complete(nullptr, 0, buffer, size, used);
    buffer = nullptr;
    size = used = most = count = 0;
  }
};
State& state() {
  static State* const state = new State;  // work may be told of until the very end
  return *state;
}

std::atomic<bool> kinds[most_kinds];
std::atomic<CUpti_TimestampCallbackFunc> clock_{nullptr};
thread_local std::map<CUpti_ExternalCorrelationKind, std::vector<std::uint64_t>> external;

std::uint32_t stream_of(const SimcudaActivity& activity) {
  return activity.stream == 0 ? legacy_stream : first_stream + static_cast<std::uint32_t>(activity.stream);
}
std::uint32_t context_of(const SimcudaActivity& activity) { return static_cast<std::uint32_t>(activity.device) + 1; }

template <typename Result>
Result record_of(const SimcudaActivity& activity, CUpti_ActivityKind kind) {
  Result record;
  std::memset(static_cast<void*>(&record), 0, sizeof record);
  record.kind = kind;
  record.start = activity.start;
  record.end = activity.end;
  record.deviceId = static_cast<std::uint32_t>(activity.device);
  record.contextId = context_of(activity);
  record.streamId = stream_of(activity);
  record.correlationId = activity.correlation;
  record.graphId = activity.in_graph ? 1 : 0;
  return record;
}

template <typename Record>
void add(const Record& record) {
  const std::lock_guard lock(state().mutex);
  state().add(record);
}

void observe_call(const SimcudaActivity& activity) {
  const CUpti_CallbackId id = call_id(activity.name);
  const std::lock_guard lock(state().mutex);
  if (enabled(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION)) {
    for (const auto& [kind, ids] : external) {
      if (ids.empty()) continue;
      CUpti_ActivityExternalCorrelation record{};
      record.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
      record.externalKind = kind;
      record.externalId = ids.back();
      record.correlationId = activity.correlation;
      state().add(record);
    }
  }
  if (!enabled(CUPTI_ACTIVITY_KIND_RUNTIME) || id == 0 || state().left_out.contains(id)) return;
  CUpti_ActivityAPI record{};
  record.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
  record.cbid = id;
  record.start = activity.start;
  record.end = activity.end;
  record.processId = static_cast<std::uint32_t>(getpid());
  record.threadId = activity.thread;
  record.correlationId = activity.correlation;
  record.returnValue = static_cast<std::uint32_t>(activity.result);
  state().add(record);
}

// Work of an operator has the operator's name, which must not be mistaken for the operator itself. What this returns
// lives for ever.
const char* kernel_name(const char* name) {
  if (std::strstr(name, "::") == nullptr || std::strchr(name, '(') != nullptr) return name;
  static std::mutex mutex;
  static auto* const names = new std::unordered_map<std::string_view, std::string>;
  const std::lock_guard lock(mutex);
  auto& known = (*names)[name];
  if (known.empty()) known = std::string("void simulated_kernel<") + name + ">()";
  return known.c_str();
}

// Of these CUPTI tells nothing: they are no kernels.
bool is_kernel(const char* name) {
  for (const char* other : {"host function", "allocate", "free", "write value"}) {
    if (std::strcmp(name, other) == 0) return false;
  }
  return true;
}

void observe_kernel(const SimcudaActivity& activity) {
  if (!enabled(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) && !enabled(CUPTI_ACTIVITY_KIND_KERNEL)) return;
  if (!is_kernel(activity.name)) return;
  auto record = record_of<Kernel>(activity, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  record.completed = activity.end;
  record.name = kernel_name(activity.name);
  record.gridX = record.gridY = record.gridZ = record.blockX = record.blockY = record.blockZ = 1;
  add(record);
}

std::uint8_t memory_kind(bool host, bool pinned) {
  return !host ? CUPTI_ACTIVITY_MEMORY_KIND_DEVICE
         : pinned ? CUPTI_ACTIVITY_MEMORY_KIND_PINNED
                  : CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
}

void observe_copy(const SimcudaActivity& activity) {
  if (!enabled(CUPTI_ACTIVITY_KIND_MEMCPY)) return;
  auto record = record_of<Memcpy>(activity, CUPTI_ACTIVITY_KIND_MEMCPY);
  constexpr std::uint8_t copies[2][2] = {{CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, CUPTI_ACTIVITY_MEMCPY_KIND_DTOH},
                                         {CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, CUPTI_ACTIVITY_MEMCPY_KIND_HTOH}};
  record.copyKind = copies[activity.from_host][activity.to_host];
  record.srcKind = memory_kind(activity.from_host, activity.from_pinned);
  record.dstKind = memory_kind(activity.to_host, activity.to_pinned);
  record.bytes = activity.bytes;
  add(record);
}

void observe_fill(const SimcudaActivity& activity) {
  if (!enabled(CUPTI_ACTIVITY_KIND_MEMSET)) return;
  auto record = record_of<Memset>(activity, CUPTI_ACTIVITY_KIND_MEMSET);
  record.value = activity.value;
  record.bytes = activity.bytes;
  record.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  add(record);
}

void observe(const SimcudaActivity* activity) {
  switch (activity->kind) {
    case SimcudaActivityKind::call: observe_call(*activity); break;
    case SimcudaActivityKind::kernel: observe_kernel(*activity); break;
    case SimcudaActivityKind::copy: observe_copy(*activity); break;
    case SimcudaActivityKind::fill: observe_fill(*activity); break;
  }
}

// By the kind that a record begins with.
std::size_t size_of(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_RUNTIME: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(Kernel);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(Memcpy);
    default: return sizeof(Memset);
  }
}

}  // namespace

std::uint64_t now() {
  if (const auto clock = clock_.load(std::memory_order_acquire)) return clock();
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

void set_clock(CUpti_TimestampCallbackFunc clock) { clock_.store(clock, std::memory_order_release); }

void set_callbacks(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete) {
  const std::lock_guard lock(state().mutex);
  state().request = request;
  state().complete = complete;
}

void enable(CUpti_ActivityKind kind, bool enabled) {
  if (static_cast<std::size_t>(kind) >= most_kinds) return;
  kinds[kind] = enabled;
  bool any = false;
  for (const auto& each : kinds) any = any || each;
  simcudaObserve(any ? &observe : nullptr, &now);
}

bool enabled(CUpti_ActivityKind kind) { return kinds[kind].load(std::memory_order_relaxed); }

void enable_call(CUpti_CallbackId id, bool enabled) {
  const std::lock_guard lock(state().mutex);
  if (enabled) {
    state().left_out.erase(id);
  } else {
    state().left_out.insert(id);
  }
}

void flush() {
  const std::lock_guard lock(state().mutex);
  state().finish();
}

std::size_t take_dropped() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().dropped, 0);
}

CUptiResult next(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record) {
  if (buffer == nullptr || record == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  auto* place = reinterpret_cast<std::uint8_t*>(*record);
  place = place == nullptr ? buffer : place + padded(size_of(**record));
  if (place >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = reinterpret_cast<CUpti_Activity*>(place);
  return CUPTI_SUCCESS;
}

CUptiResult push_external(CUpti_ExternalCorrelationKind kind, std::uint64_t id) {
  external[kind].push_back(id);
  return CUPTI_SUCCESS;
}

CUptiResult pop_external(CUpti_ExternalCorrelationKind kind, std::uint64_t* id) {
  auto& ids = external[kind];
  if (ids.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (id != nullptr) *id = ids.back();
  ids.pop_back();
  return CUPTI_SUCCESS;
}

CUpti_CallbackId call_id(const char* name) {
  static const auto* const ids = new std::unordered_map<std::string_view, CUpti_CallbackId>{
#define CALLBACK(number, name, full) {#name, number},
#include "callbacks.def"
#undef CALLBACK
      // What operators launch is what a kernel's launch is on a GPU.
      {"simcudaLaunch", CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000},
  };
  const auto found = ids->find(name);
  return found == ids->end() ? 0 : found->second;
}

const char* call_name(CUpti_CallbackId id) {
  switch (id) {
#define CALLBACK(number, name, full) \
  case number: return #full;
#include "callbacks.def"
#undef CALLBACK
    default: return nullptr;
  }
}

}  // namespace simcuda::cupti
