#include "records.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "buffers.h"
#include "enabled.h"
#include "layouts.h"
#include "names.h"

namespace simcuda::cupti {

namespace {

constexpr CUpti_ActivityKind served[] = {
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_KERNEL,
    CUPTI_ACTIVITY_KIND_DRIVER,
    CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_OVERHEAD,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_CUDA_EVENT,
    CUPTI_ACTIVITY_KIND_SYNCHRONIZATION,
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
};

std::atomic<bool> kinds[CUPTI_ACTIVITY_KIND_COUNT];
// The last call that has begun. Numbers grow, so a call that began before a kind was enabled is known by its number.
std::atomic<std::uint32_t> last_call{0};
std::atomic<std::uint32_t> enabled_after[CUPTI_ACTIVITY_KIND_COUNT];
// Single functions. Enabling or disabling the kind RUNTIME or DRIVER sets all of them.
Enabled runtime_calls, driver_calls;
std::atomic<bool> event_times{false}, unfinished_queries{true};
std::atomic<CUpti_ActivityThreadIdType> thread_ids_{CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT};
thread_local std::array<std::vector<std::uint64_t>, CUPTI_EXTERNAL_CORRELATION_KIND_SIZE> external;

bool on(CUpti_ActivityKind kind) { return kinds[kind].load(std::memory_order_relaxed); }

// Work of calls that began before the kind was enabled is not recorded, however late it runs.
bool on(CUpti_ActivityKind kind, const SimcudaActivity& work) {
  return on(kind) && work.correlation > enabled_after[kind].load(std::memory_order_relaxed);
}

void note_call(std::uint32_t number) {
  std::uint32_t last = last_call.load(std::memory_order_relaxed);
  while (last < number && !last_call.compare_exchange_weak(last, number, std::memory_order_relaxed)) {
  }
}

bool on(const SimcudaActivity& call, const Function& function) {
  const auto& calls = call.driver ? driver_calls : runtime_calls;
  return function.id != 0 && calls[function.id].load(std::memory_order_relaxed);
}

std::uint32_t thread_of(const SimcudaActivity& call) {
  if (thread_ids() == CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT) return call.thread;
  return static_cast<std::uint32_t>(syscall(SYS_gettid));  // a call is reported in its own thread
}

template <typename Record>
Record empty() {
  Record record;
  std::memset(static_cast<void*>(&record), 0, sizeof record);
  return record;
}

template <typename Record>
void add(const Record& record, const SimcudaActivity& activity) {
  const auto request = append(&record, sizeof record);
  if (!request || !on(CUPTI_ACTIVITY_KIND_OVERHEAD)) return;
  auto overhead = empty<OverheadRecord>();
  overhead.kind = CUPTI_ACTIVITY_KIND_OVERHEAD;
  overhead.overheadKind = CUPTI_ACTIVITY_OVERHEAD_ACTIVITY_BUFFER_REQUEST;
  overhead.objectKind = CUPTI_ACTIVITY_OBJECT_THREAD;
  overhead.objectId.pt.processId = static_cast<std::uint32_t>(getpid());
  overhead.objectId.pt.threadId = thread_of(activity);
  overhead.start = request->start;
  overhead.end = request->end;
  if constexpr (requires { overhead.correlationId; }) overhead.correlationId = activity.correlation;
  append(&overhead, sizeof overhead);
}

// CUPTI: "The activity API record will be preceded by" an external correlation record for each kind of external id that
// the thread has.
void add_call_begins(const SimcudaActivity& activity) {
  note_call(activity.correlation);
  if (!on(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) || !on(activity, function_of(activity))) return;
  for (std::size_t kind = 0; kind < external.size(); ++kind) {
    if (external[kind].empty()) continue;
    auto record = empty<ExternalRecord>();
    record.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    record.externalKind = static_cast<CUpti_ExternalCorrelationKind>(kind);
    record.externalId = external[kind].back();
    record.correlationId = activity.correlation;
    add(record, activity);
  }
}

void add_call(const SimcudaActivity& activity) {
  const Function function = function_of(activity);
  if (!on(activity, function)) return;
  auto record = empty<CallRecord>();
  record.kind = activity.driver ? CUPTI_ACTIVITY_KIND_DRIVER : CUPTI_ACTIVITY_KIND_RUNTIME;
  record.cbid = function.id;
  record.start = activity.start;
  record.end = activity.end;
  record.processId = static_cast<std::uint32_t>(getpid());
  record.threadId = thread_of(activity);
  record.correlationId = activity.correlation;
  record.returnValue = static_cast<std::uint32_t>(activity.result);
  add(record, activity);
}

CUpti_ActivitySynchronizationType type_of(SimcudaWait wait) {
  switch (wait) {
    case SimcudaWait::event:
      return CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE;
    case SimcudaWait::stream_for_event:
      return CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT;
    case SimcudaWait::stream:
      return CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE;
    case SimcudaWait::device:
      return CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE;
    default:
      return CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_UNKNOWN;
  }
}

void add_wait(const SimcudaActivity& activity) {
  if (!on(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION)) return;
  if (activity.result == CUDA_ERROR_NOT_READY && !unfinished_queries.load(std::memory_order_relaxed)) return;
  auto record = empty<WaitRecord>();
  record.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
  record.type = type_of(activity.wait);
  record.start = activity.start;
  record.end = activity.end;
  record.correlationId = activity.correlation;
  record.contextId = context_of(activity.device);
  record.streamId = stream_of(activity.stream);
  record.cudaEventId = activity.event == 0 ? CUPTI_SYNCHRONIZATION_INVALID_VALUE : activity.event;
  if constexpr (requires { record.cudaEventSyncId; }) {
    record.cudaEventSyncId = activity.record == 0 ? CUPTI_SYNCHRONIZATION_INVALID_VALUE : activity.record;
    record.returnValue = static_cast<std::uint32_t>(activity.result);
  }
  add(record, activity);
}

// An event is recorded once: when the device reaches it if device times are enabled, otherwise at the call. Clients of
// SYNCHRONIZATION get the record, too: torch's profiler enables only that kind, and learns from event records what is
// waited for.
void add_event(const SimcudaActivity& activity) {
  const bool reached = activity.kind == SimcudaActivityKind::event_reached;
  if (!on(CUPTI_ACTIVITY_KIND_CUDA_EVENT, activity) && !on(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, activity)) return;
  if (reached != event_times.load(std::memory_order_relaxed)) return;
  auto record = empty<EventRecord>();
  record.kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT;
  record.correlationId = activity.correlation;
  record.contextId = context_of(activity.device);
  record.streamId = stream_of(activity.stream);
  record.eventId = activity.event;
  if constexpr (requires { record.deviceTimestamp; }) {
    record.deviceId = static_cast<std::uint32_t>(activity.device);
    record.deviceTimestamp = reached ? activity.end : 0;
    record.cudaEventSyncId = activity.record;
  }
  add(record, activity);
}

template <typename Record>
Record work_record(const SimcudaActivity& activity, CUpti_ActivityKind kind) {
  auto record = empty<Record>();
  record.kind = kind;
  record.start = activity.start;
  record.end = activity.end;
  record.deviceId = static_cast<std::uint32_t>(activity.device);
  record.contextId = context_of(activity.device);
  record.streamId = stream_of(activity.stream);
  record.correlationId = activity.correlation;
  record.graphId = activity.graph;
  record.graphNodeId = activity.node;
  return record;
}

// Returns the name of a kernel. Work of an operator has the operator's name, which must not be mistaken for the
// operator itself. The returned string is never freed.
const char* kernel_name(const char* name) {
  if (std::strstr(name, "::") == nullptr || std::strchr(name, '(') != nullptr) return name;
  static std::mutex mutex;
  static auto* const names = new std::unordered_map<std::string_view, std::string>;
  const std::lock_guard lock(mutex);
  auto& known = (*names)[name];
  if (known.empty()) known = std::string("void simulated_kernel<") + name + ">()";
  return known.c_str();
}

// CUPTI does not report these: they are not kernels.
bool is_kernel(const char* name) {
  for (const char* other : {"host function", "allocate", "free", "write value"}) {
    if (std::strcmp(name, other) == 0) return false;
  }
  return true;
}

void add_kernel(const SimcudaActivity& activity) {
  const auto kind = on(CUPTI_ACTIVITY_KIND_KERNEL) ? CUPTI_ACTIVITY_KIND_KERNEL : CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  if (!on(kind, activity) || !is_kernel(activity.name)) return;
  auto record = work_record<KernelRecord>(activity, kind);
  record.completed = activity.end;
  record.name = kernel_name(activity.name);
  record.gridX = record.gridY = record.gridZ = record.blockX = record.blockY = record.blockZ = 1;
  add(record, activity);
}

std::uint8_t memory_kind(const SimcudaPlace& place) {
  switch (place.memory) {
    case SimcudaMemory::pageable:
      return CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
    case SimcudaMemory::pinned:
      return CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
    case SimcudaMemory::managed:
      return CUPTI_ACTIVITY_MEMORY_KIND_MANAGED;
    default:
      return CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
  }
}

bool on_host(const SimcudaPlace& place) {
  return place.memory == SimcudaMemory::pageable || place.memory == SimcudaMemory::pinned;
}

bool between_devices(const SimcudaActivity& activity) {
  return activity.from.memory == SimcudaMemory::device && activity.to.memory == SimcudaMemory::device &&
         activity.from.device != activity.to.device;
}

template <typename Record>
Record copy_record(const SimcudaActivity& activity, CUpti_ActivityKind kind, std::uint8_t copy_kind) {
  auto record = work_record<Record>(activity, kind);
  record.copyKind = copy_kind;
  record.srcKind = memory_kind(activity.from);
  record.dstKind = memory_kind(activity.to);
  record.flags = activity.asynchronous ? CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC : CUPTI_ACTIVITY_FLAG_NONE;
  record.bytes = activity.bytes;
  return record;
}

// A copy between devices has its own layout. Clients of MEMCPY get the record, too: torch's profiler enables only that
// kind, and shows such copies on GPUs.
void add_copy(const SimcudaActivity& activity) {
  if (between_devices(activity)) {
    if (!on(CUPTI_ACTIVITY_KIND_MEMCPY, activity) && !on(CUPTI_ACTIVITY_KIND_MEMCPY2, activity)) return;
    auto record = copy_record<PeerCopyRecord>(activity, CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_MEMCPY_KIND_PTOP);
    record.srcDeviceId = static_cast<std::uint32_t>(activity.from.device);
    record.srcContextId = context_of(activity.from.device);
    record.dstDeviceId = static_cast<std::uint32_t>(activity.to.device);
    record.dstContextId = context_of(activity.to.device);
    add(record, activity);
    return;
  }
  if (!on(CUPTI_ACTIVITY_KIND_MEMCPY, activity)) return;
  constexpr std::uint8_t copies[2][2] = {{CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, CUPTI_ACTIVITY_MEMCPY_KIND_DTOH},
                                         {CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, CUPTI_ACTIVITY_MEMCPY_KIND_HTOH}};
  auto record = copy_record<CopyRecord>(activity, CUPTI_ACTIVITY_KIND_MEMCPY,
                                        copies[on_host(activity.from)][on_host(activity.to)]);
  if constexpr (requires { record.copyCount; }) record.copyCount = 1;
  add(record, activity);
}

void add_fill(const SimcudaActivity& activity) {
  if (!on(CUPTI_ACTIVITY_KIND_MEMSET, activity)) return;
  auto record = work_record<FillRecord>(activity, CUPTI_ACTIVITY_KIND_MEMSET);
  record.value = activity.value;
  record.bytes = activity.bytes;
  record.flags = activity.asynchronous ? CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC : CUPTI_ACTIVITY_FLAG_NONE;
  record.memoryKind = memory_kind(activity.to);
  add(record, activity);
}

void set_all(Enabled& calls, bool enabled) {
  for (auto& one : calls) one = enabled;
}

}  // namespace

CUptiResult enable(CUpti_ActivityKind kind, bool enabled) {
  if (std::find(std::begin(served), std::end(served), kind) == std::end(served)) return CUPTI_ERROR_INVALID_KIND;
  if (enabled && ((kind == CUPTI_ACTIVITY_KIND_KERNEL && on(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)) ||
                  (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL && on(CUPTI_ACTIVITY_KIND_KERNEL)))) {
    return CUPTI_ERROR_NOT_COMPATIBLE;
  }
  if (enabled && !kinds[kind]) enabled_after[kind] = last_call.load(std::memory_order_relaxed);
  kinds[kind] = enabled;
  if (kind == CUPTI_ACTIVITY_KIND_RUNTIME) set_all(runtime_calls, enabled);
  if (kind == CUPTI_ACTIVITY_KIND_DRIVER) set_all(driver_calls, enabled);
  return CUPTI_SUCCESS;
}

CUptiResult enable_call(CUpti_CallbackId id, bool driver, bool enabled) {
  if (id == 0 || id >= most_ids) return CUPTI_ERROR_INVALID_PARAMETER;
  (driver ? driver_calls : runtime_calls)[id] = enabled;
  return CUPTI_SUCCESS;
}

bool records_enabled() {
  return std::any_of(std::begin(served), std::end(served), [](auto kind) { return on(kind); }) || any(runtime_calls) ||
         any(driver_calls);
}

void disable_records() {
  for (auto& kind : kinds) kind = false;
  set_all(runtime_calls, false);
  set_all(driver_calls, false);
  event_times = false;
  unfinished_queries = true;
}

void set_event_times(bool enabled) { event_times = enabled; }
void set_unfinished_queries(bool enabled) { unfinished_queries = enabled; }

CUptiResult set_thread_ids(CUpti_ActivityThreadIdType type) {
  if (type != CUPTI_ACTIVITY_THREAD_ID_TYPE_DEFAULT && type != CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  thread_ids_ = type;
  return CUPTI_SUCCESS;
}

CUpti_ActivityThreadIdType thread_ids() { return thread_ids_.load(std::memory_order_relaxed); }

CUptiResult push_external(CUpti_ExternalCorrelationKind kind, std::uint64_t id) {
  if (kind <= CUPTI_EXTERNAL_CORRELATION_KIND_INVALID || kind >= CUPTI_EXTERNAL_CORRELATION_KIND_SIZE) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  external[kind].push_back(id);
  return CUPTI_SUCCESS;
}

CUptiResult pop_external(CUpti_ExternalCorrelationKind kind, std::uint64_t* id) {
  if (kind <= CUPTI_EXTERNAL_CORRELATION_KIND_INVALID || kind >= CUPTI_EXTERNAL_CORRELATION_KIND_SIZE) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  auto& ids = external[kind];
  if (ids.empty()) return CUPTI_ERROR_QUEUE_EMPTY;
  if (id != nullptr) *id = ids.back();
  ids.pop_back();
  return CUPTI_SUCCESS;
}

void add_record(const SimcudaActivity& activity) {
  switch (activity.kind) {
    case SimcudaActivityKind::call_begins:
      add_call_begins(activity);
      break;
    case SimcudaActivityKind::call:
      add_call(activity);
      break;
    case SimcudaActivityKind::wait:
      add_wait(activity);
      break;
    case SimcudaActivityKind::event_record:
    case SimcudaActivityKind::event_reached:
      add_event(activity);
      break;
    case SimcudaActivityKind::kernel:
      add_kernel(activity);
      break;
    case SimcudaActivityKind::copy:
      add_copy(activity);
      break;
    case SimcudaActivityKind::fill:
      add_fill(activity);
      break;
    case SimcudaActivityKind::context:
      break;
  }
}

}  // namespace simcuda::cupti
