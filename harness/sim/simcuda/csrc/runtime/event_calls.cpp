// The interface: events. Streams and captures record them; streams and the host wait for them.
#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "activity.h"
#include "call.h"
#include "capture.h"
#include "context.h"
#include "device.h"
#include "event.h"
#include "graph.h"
#include "ipc_event.h"
#include "pools.h"

using namespace simcuda;

namespace {

constexpr unsigned event_flags = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;

// CUDA Programming Guide, "Prohibited and Unhandled Operations": an event in a capture is not scheduled for execution,
// so querying it is invalid. The capture is invalidated.
void forbid_captured(Event& event, const char* call) {
  const std::lock_guard lock(graphs_mutex());
  if (!event.captured) return;
  if (const auto capture = event.capture.lock()) capture->invalidate(call);
  throw Error(cudaErrorCapturedEvent);
}

// Returns the mark that finishes with the last record; null if there is none.
std::shared_ptr<Mark> last_record(Event& event) {
  if (event.page) return IpcEventPage::mark(event.page);
  return event.mark();
}

void record(Event& event, Stream& stream, unsigned flags) {
  check((flags & ~unsigned{cudaEventRecordExternal}) == 0);
  check(&event.device() == &stream.device(), cudaErrorInvalidResourceHandle);
  check(stream.device().error());
  if (any_capture()) {
    const std::lock_guard lock(graphs_mutex());
    if (const auto capture = capture_of(stream)) {
      if (capture->invalid) throw Error(cudaErrorStreamCaptureInvalidated);
      Capture::Member& member = *capture->member(stream);
      if (flags & cudaEventRecordExternal) {
        Node& node = capture->graph->add(bare_operation(cudaGraphNodeTypeEventRecord, "event record"),
                                         stream.device().index, member.tail);
        node.event = event.shared_from_this();
        member.tail = {&node};
      } else {
        event.set_mark(nullptr);
        event.captured = true;
        event.capture = capture;
        event.nodes = member.tail;
      }
      return;
    }
    forbid_implicit(stream, "cudaEventRecord");
  }
  event.set_mark(nullptr);
  Work reached;
  const bool observed = activity::observed();
  event.count_record(observed);
  if (observed) {
    reached = [record = event.activity_record(), ticket = activity::ticket(stream.activity_id())] {
      activity::report_event_reached(record, ticket);
    };
    activity::report_event_record(event.activity_record(), activity::ticket(stream.activity_id()));
  }
  if (event.page == nullptr) {
    event.set_mark(stream.mark(std::move(reached)));
    return;
  }
  const auto number = event.page->record();
  auto mark = std::make_shared<Mark>();
  races::record(stream.timeline(), *mark);
  std::vector<Item> items;
  items.push_back({nullptr,
                   [page = event.page, number, reached = std::move(reached)] {
                     if (reached) reached();
                     page->finish(number);
                   },
                   mark});
  stream.push(std::move(items));
  event.set_mark(std::move(mark));
}

// Makes the stream wait for the last record, in this process or another one.
void wait_for(Stream& stream, Event& event) {
  if (const auto mark = event.mark()) races::wait(stream.timeline(), *mark);
  stream.wait(last_record(event));
}

// Notes that the host has seen that the last record is reached.
void learn(const Event& event) {
  if (const auto mark = event.mark()) races::learn(*mark);
}

void describe_wait(const Stream& stream, const Event& event) {
  activity::describe_wait(SimcudaWait::stream_for_event, stream.device().index, stream.activity_id(),
                          event.activity_record());
}

// Reports that the host waits for an event, or queries it.
void describe_wait(const Event& event) {
  activity::describe_wait(SimcudaWait::event, event.device().index, simcuda_no_stream, event.activity_record());
}

void wait(Stream& stream, Event& event, unsigned flags) {
  check((flags & ~unsigned{cudaEventWaitExternal}) == 0);
  check(stream.device().error());
  const std::lock_guard lock(graphs_mutex());
  const auto capture = any_capture() ? capture_of(stream) : nullptr;
  if (capture && capture->invalid) throw Error(cudaErrorStreamCaptureInvalidated);
  if (flags & cudaEventWaitExternal) {
    if (!capture) {
      if (event.captured) throw Error(cudaErrorCapturedEvent);
      describe_wait(stream, event);
      wait_for(stream, event);
      return;
    }
    Capture::Member& member = *capture->member(stream);
    Node& node = capture->graph->add(bare_operation(cudaGraphNodeTypeWaitEvent, "event wait"), stream.device().index,
                                     member.tail);
    node.event = event.shared_from_this();
    member.tail = {&node};
    return;
  }
  if (event.captured) {
    const auto its = event.capture.lock();
    if (!its) throw Error(capture ? cudaErrorStreamCaptureIsolation : cudaErrorCapturedEvent);
    if (capture && capture != its) {
      capture->invalidate("a stream of one capture waits for an event of another");
      its->invalidate("a stream of another capture waits for its event");
      throw Error(cudaErrorStreamCaptureMerge);
    }
    if (stream.legacy()) {
      its->invalidate("the legacy stream waits for an event of the capture");
      throw Error(cudaErrorStreamCaptureImplicit);
    }
    if (its->invalid) throw Error(cudaErrorStreamCaptureInvalidated);
    if (!capture) its->members.push_back({stream.shared_from_this(), {}});
    its->member(stream)->join(event.nodes);
    return;
  }
  if (capture) {
    capture->invalidate("a captured stream waits for an event that is not of the capture");
    throw Error(cudaErrorStreamCaptureIsolation);
  }
  if (any_capture()) forbid_implicit(stream, "cudaStreamWaitEvent");
  describe_wait(stream, event);
  wait_for(stream, event);
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  SIMCUDA_CALL(device, {
    check(event != nullptr && (flags & ~event_flags) == 0);
    // "cudaEventInterprocess must be specified along with cudaEventDisableTiming."
    check(!(flags & cudaEventInterprocess) || (flags & cudaEventDisableTiming));
    Device& device = current_device();
    wake(device);
    auto made = std::make_shared<Event>(device, flags);
    if (flags & cudaEventInterprocess) made->page = IpcEventPage::make();
    *event = made->handle();
    add_event(std::move(made));
  });
}

SIMCUDA_EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

SIMCUDA_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
  SIMCUDA_CALL(driver, { remove_event(event); });
}

SIMCUDA_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  SIMCUDA_CALL(device, { record(*find_event(event), *find_stream(stream), flags); });
}

SIMCUDA_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

SIMCUDA_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  SIMCUDA_CALL(device, { wait(*find_stream(stream), *find_event(event), flags); });
}

SIMCUDA_EXPORT cudaError_t cudaEventQuery(cudaEvent_t handle) {
  SIMCUDA_CALL(driver, {
    const auto event = find_event(handle);
    check(event->device().error());
    forbid_captured(*event, "cudaEventQuery");
    forbid_unsafe("cudaEventQuery");
    describe_wait(*event);
    const auto mark = event->mark();
    const bool done = event->page ? event->page->done() : mark == nullptr || mark->poll();
    if (done) learn(*event);
    return done ? cudaSuccess : cudaErrorNotReady;
  });
}

SIMCUDA_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  SIMCUDA_CALL(driver, {
    const auto event = find_event(handle);
    check(event->device().error());
    forbid_captured(*event, "cudaEventSynchronize");
    forbid_unsafe("cudaEventSynchronize");
    describe_wait(*event);
    if (const auto mark = last_record(*event)) mark->wait();
    learn(*event);
    release_after_wait(event->device());
    return event->device().error();
  });
}

SIMCUDA_EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  SIMCUDA_CALL(driver, {
    check(milliseconds != nullptr);
    const auto from = find_event(start), to = find_event(end);
    check(from->device().error());
    check(&from->device() == &to->device(), cudaErrorInvalidResourceHandle);
    check(from->timing() && to->timing(), cudaErrorInvalidResourceHandle);
    for (Event* const event : {from.get(), to.get()}) {
      const std::lock_guard lock(graphs_mutex());
      check(!event->captured, cudaErrorCapturedEvent);
    }
    const auto first = from->mark(), second = to->mark();
    check(first != nullptr && second != nullptr, cudaErrorInvalidResourceHandle);
    if (!first->poll() || !second->poll()) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(second->time() - first->time()).count();
    return cudaSuccess;
  });
}

SIMCUDA_EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  SIMCUDA_CALL(device, {
    check(handle != nullptr);
    const auto found = find_event(event);
    check(found->page != nullptr, cudaErrorInvalidResourceHandle);
    *handle = found->page->handle();
  });
}

SIMCUDA_EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  SIMCUDA_CALL(device, {
    check(event != nullptr);
    Device& device = current_device();
    wake(device);
    auto made = std::make_shared<Event>(device, cudaEventInterprocess | cudaEventDisableTiming);
    made->page = IpcEventPage::open(handle);
    *event = made->handle();
    add_event(std::move(made));
  });
}
