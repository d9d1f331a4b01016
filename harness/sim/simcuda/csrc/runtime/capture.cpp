#include "capture.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include "../include/simcuda.h"
#include "../include/simcuda_shared.h"
#include "call.h"
#include "context.h"
#include "device.h"
#include "nodes.h"
#include "trace.h"
#include "versions.h"

namespace simcuda {

namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
std::atomic<int> lasting{0};

std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* const captures = new std::vector<std::shared_ptr<Capture>>;
  return *captures;
}

void forget(const std::shared_ptr<Capture>& capture) {
  std::erase(captures(), capture);
  lasting.store(static_cast<int>(captures().size()), std::memory_order_release);
}

// Whether all that the other streams did comes before what the first stream did last.
bool joined(const Capture& capture) {
  std::set<const Node*> reached;
  std::vector<const Node*> open(capture.members.front().tail.begin(), capture.members.front().tail.end());
  while (!open.empty()) {
    const Node* const node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->needs.begin(), node->needs.end());
  }
  return std::all_of(capture.members.begin(), capture.members.end(), [&](const Capture::Member& member) {
    return std::all_of(member.tail.begin(), member.tail.end(),
                       [&](const Node* node) { return reached.contains(node); });
  });
}

template <typename Matches>
void forbid(const char* call, cudaError_t error, Matches&& matches) {
  if (!any_capture()) return;
  const std::lock_guard lock(graphs_mutex());
  bool found = false;
  for (const auto& capture : captures()) {
    if (!matches(*capture)) continue;
    capture->invalidate(call);
    found = true;
  }
  if (found) throw Error(error);
}

}  // namespace

void Capture::Member::join(const std::vector<Node*>& nodes) {
  for (Node* const node : nodes) {
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
  }
}

Capture::Member* Capture::member(const Stream& stream) {
  for (Member& member : members) {
    if (member.stream.get() == &stream) return &member;
  }
  return nullptr;
}

void Capture::invalidate(const char* why) {
  if (!invalid) note("capture " + std::to_string(id) + " is invalidated: " + why);
  invalid = true;
}

bool any_capture() { return lasting.load(std::memory_order_acquire) > 0; }

std::shared_ptr<Capture> capture_of(const Stream& stream) {
  if (!any_capture()) return nullptr;
  const std::lock_guard lock(graphs_mutex());
  for (const auto& capture : captures()) {
    if (capture->member(stream)) return capture;
  }
  return nullptr;
}

cudaError_t submit(Stream& stream, Operation operation) {
  Device& device = stream.device();
  if (device.error() != cudaSuccess) return device.error();
  if (any_capture()) {
    const std::lock_guard lock(graphs_mutex());
    if (const auto capture = capture_of(stream)) {
      if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
      Capture::Member& member = *capture->member(stream);
      member.tail = {&capture->graph->add(std::move(operation), device.index, member.tail)};
      return cudaSuccess;
    }
    forbid_implicit(stream, operation.name);
  }
  if (operation.work) stream.push(operation.name, std::move(operation.work), std::move(operation.begin));
  return cudaSuccess;
}

void forbid_unsafe(const char* call) {
  // "If the local thread has an ongoing capture sequence that was not initiated with cudaStreamCaptureModeRelaxed, or
  // (in mode global) if any other thread has a concurrent capture sequence initiated with cudaStreamCaptureModeGlobal,
  // this thread is prohibited from potentially unsafe API calls."
  if (thread_mode == cudaStreamCaptureModeRelaxed) return;
  forbid(call, cudaErrorStreamCaptureUnsupported, [](const Capture& capture) {
    if (capture.thread == std::this_thread::get_id()) return capture.mode != cudaStreamCaptureModeRelaxed;
    return thread_mode == cudaStreamCaptureModeGlobal && capture.mode == cudaStreamCaptureModeGlobal;
  });
}

void forbid_captured(const Stream& stream, const char* call) {
  forbid(call, cudaErrorStreamCaptureUnsupported, [&](Capture& capture) { return capture.member(stream) != nullptr; });
  forbid_implicit(stream, call);
}

void forbid_captured(const Device& device, const char* call) {
  forbid(call, cudaErrorStreamCaptureUnsupported, [&](const Capture& capture) {
    return std::any_of(capture.members.begin(), capture.members.end(),
                       [&](const Capture::Member& member) { return &member.stream->device() == &device; });
  });
}

void forbid_implicit(const Stream& stream, const char* call) {
  if (!stream.legacy()) return;
  forbid(call, cudaErrorStreamCaptureImplicit, [&](const Capture& capture) {
    return std::any_of(capture.members.begin(), capture.members.end(), [&](const Capture::Member& member) {
      return member.stream->blocking() && &member.stream->device() == &stream.device();
    });
  });
}

void begin_capture(Stream& stream, std::shared_ptr<Graph> graph, bool given, const std::vector<Node*>& tail,
                   cudaStreamCaptureMode mode) {
  check(mode == cudaStreamCaptureModeGlobal || mode == cudaStreamCaptureModeThreadLocal ||
        mode == cudaStreamCaptureModeRelaxed);
  check(!stream.legacy(), cudaErrorStreamCaptureUnsupported);
  const std::lock_guard lock(graphs_mutex());
  check(capture_of(stream) == nullptr, cudaErrorIllegalState);
  for (const Node* const node : tail) check(graph->has(node));
  static unsigned long long ids = 0;
  auto capture = std::make_shared<Capture>();
  capture->id = ++ids;
  capture->graph = std::move(graph);
  capture->given_graph = given;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->members.push_back({stream.shared_from_this(), tail});
  captures().push_back(std::move(capture));
  lasting.store(static_cast<int>(captures().size()), std::memory_order_release);
}

std::shared_ptr<Graph> end_capture(Stream& stream) {
  const std::lock_guard lock(graphs_mutex());
  const auto capture = capture_of(stream);
  check(capture != nullptr, cudaErrorIllegalState);
  if (capture->members.front().stream.get() != &stream) {
    capture->invalidate("it was ended on a stream that it did not begin on");
    throw Error(cudaErrorStreamCaptureUnmatched);
  }
  check(capture->mode == cudaStreamCaptureModeRelaxed || capture->thread == std::this_thread::get_id(),
        cudaErrorStreamCaptureWrongThread);
  forget(capture);
  cudaError_t error = cudaSuccess;
  if (capture->invalid) {
    error = cudaErrorStreamCaptureInvalidated;
  } else if (!joined(*capture)) {
    error = cudaErrorStreamCaptureUnjoined;
  }
  capture->members.clear();
  if (error == cudaSuccess) return capture->graph;
  if (!capture->given_graph) forget_graph(capture->graph->handle());
  throw Error(error);
}

void leave_capture(Stream& stream) {
  const std::lock_guard lock(graphs_mutex());
  const auto capture = capture_of(stream);
  if (!capture) return;
  capture->invalidate("one of its streams is destroyed");
  if (capture->members.front().stream.get() != &stream) {
    std::erase_if(capture->members, [&](const Capture::Member& member) { return member.stream.get() == &stream; });
    return;
  }
  forget(capture);
  if (!capture->given_graph) forget_graph(capture->graph->handle());
}

cudaStreamCaptureMode exchange_mode(cudaStreamCaptureMode mode) { return std::exchange(thread_mode, mode); }

}  // namespace simcuda

using namespace simcuda;

namespace {

cudaStreamCaptureStatus status(const std::shared_ptr<Capture>& capture) {
  if (!capture) return cudaStreamCaptureStatusNone;
  return capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
}

// Asking for the state of the legacy stream's capture is refused, but harms no capture.
void refuse_implicit(const Stream& stream) {
  if (!stream.legacy() || !any_capture()) return;
  const std::lock_guard lock(graphs_mutex());
  for (const auto& capture : captures()) {
    for (const auto& member : capture->members) {
      check(!member.stream->blocking() || &member.stream->device() != &stream.device(), cudaErrorStreamCaptureImplicit);
    }
  }
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  SIMCUDA_CALL(driver, {
    check(mode != nullptr && *mode >= cudaStreamCaptureModeGlobal && *mode <= cudaStreamCaptureModeRelaxed);
    *mode = exchange_mode(*mode);
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  SIMCUDA_CALL(device, {
    auto graph = new_graph();
    try {
      begin_capture(*find_stream(stream), graph, false, {}, mode);
    } catch (...) {
      forget_graph(graph->handle());
      throw;
    }
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                         const cudaGraphNode_t* dependencies, const cudaGraphEdgeData*,
                                                         size_t count, cudaStreamCaptureMode mode) {
  SIMCUDA_CALL(device,
               { begin_capture(*find_stream(stream), find_graph(graph), true, nodes_of(dependencies, count), mode); });
}

SIMCUDA_EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  SIMCUDA_CALL(driver, {
    if (graph != nullptr) *graph = nullptr;
    const auto captured = end_capture(*find_stream(stream));
    // torch leaves it out for captures to a graph that it knows.
    if (graph != nullptr) *graph = captured->handle();
  });
}

SIMCUDA_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* result) {
  SIMCUDA_CALL(driver, {
    check(result != nullptr);
    const auto found = find_stream(stream);
    refuse_implicit(*found);
    const std::lock_guard lock(graphs_mutex());
    *result = status(capture_of(*found));
  });
}

SIMCUDA_EXPORT cudaError_t SIMCUDA_WITH_EDGES(cudaStreamGetCaptureInfo,
                                              _v3)(cudaStream_t stream, cudaStreamCaptureStatus* result,
                                                   unsigned long long* id, cudaGraph_t* graph,
                                                   const cudaGraphNode_t** dependencies,
                                                   const cudaGraphEdgeData** edges, size_t* count) {
  SIMCUDA_CALL(driver, {
    check(result != nullptr);
    const auto found = find_stream(stream);
    refuse_implicit(*found);
    const std::lock_guard lock(graphs_mutex());
    const auto capture = capture_of(*found);
    *result = status(capture);
    if (*result != cudaStreamCaptureStatusActive) return;
    const auto& tail = capture->member(*found)->tail;
    if (id) *id = capture->id;
    if (graph) *graph = capture->graph->handle();
    // Handles of nodes are their addresses.
    if (dependencies) *dependencies = reinterpret_cast<const cudaGraphNode_t*>(tail.data());
    if (edges) *edges = nullptr;  // all have default data
    if (count) *count = tail.size();
  });
}

SIMCUDA_EXPORT cudaError_t SIMCUDA_WITH_EDGES(cudaStreamUpdateCaptureDependencies,
                                              _v2)(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                   const cudaGraphEdgeData*, size_t count, unsigned flags) {
  SIMCUDA_CALL(device, {
    check(flags <= cudaStreamSetCaptureDependencies);
    const auto found = find_stream(stream);
    const std::lock_guard lock(graphs_mutex());
    const auto capture = capture_of(*found);
    check(capture != nullptr, cudaErrorIllegalState);
    check(!capture->invalid, cudaErrorStreamCaptureInvalidated);
    const auto nodes = nodes_of(dependencies, count);
    for (const Node* const node : nodes) check(capture->graph->has(node));
    Capture::Member& member = *capture->member(*found);
    if (flags == cudaStreamSetCaptureDependencies) member.tail.clear();
    member.join(nodes);
  });
}

SIMCUDA_EXPORT int simcudaLaunch(cudaStream_t stream, const char* name, std::function<void()>* work) {
  SIMCUDA_CALL(device, {
    count("operator", name);
    Operation operation;
    operation.name = name;
    operation.work = std::move(*work);
    return submit(*find_stream(stream), std::move(operation));
  });
}

SIMCUDA_EXPORT int simcudaLaunchShared(cudaStream_t stream, const char* name,
                                       std::function<void(std::function<void()>)>* begin, std::function<void()>* work) {
  SIMCUDA_CALL(device, {
    count("shared work", name);
    Operation operation;
    operation.name = name;
    operation.begin = [begin = std::move(*begin)](std::shared_ptr<Mark> mark) {
      begin([mark = std::move(mark)] { mark->finish(); });
    };
    operation.work = std::move(*work);
    return submit(*find_stream(stream), std::move(operation));
  });
}

SIMCUDA_EXPORT int simcudaIsCapturing(cudaStream_t stream) {
  if (!any_capture()) return 0;
  try {
    return capture_of(*find_stream(stream)) != nullptr;
  } catch (const Error&) {
    return 0;
  }
}

SIMCUDA_EXPORT void simcudaInvalidateCapture(cudaStream_t stream, const char* why) {
  if (!any_capture()) return;
  const std::lock_guard lock(graphs_mutex());
  try {
    if (const auto capture = capture_of(*find_stream(stream))) capture->invalidate(why);
  } catch (const Error&) {
  }
}
