#include "capture.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

#include "device.h"
#include "error.h"
#include "ledger.h"
#include "memory_check.h"
#include "trace.h"

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

// Whether the first stream's last node depends on all nodes of the other streams.
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
  operation.origin = races::origin(operation.name);  // without locks
  if (any_capture()) {
    const std::lock_guard lock(graphs_mutex());
    if (const auto capture = capture_of(stream)) {
      if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
      Capture::Member& member = *capture->member(stream);
      races::remember_blocks(operation.accesses);
      member.tail = {&capture->graph->add(std::move(operation), device.index, member.tail)};
      return cudaSuccess;
    }
    forbid_implicit(stream, operation.name);
  }
  if (operation.type == cudaGraphNodeTypeKernel) ledger::count_kernel(device.number);
  const races::Accessor accessor{operation.origin, device.index, stream.id()};
  if (operation.type == cudaGraphNodeTypeKernel && operation.unknown) races::assume_all_written();
  auto conflicts = races::access(stream.timeline(), operation.accesses, std::move(operation.origin));
  if (operation.type == cudaGraphNodeTypeKernel) {
    const cudaError_t refused = refused_accesses(device, operation.accesses, accessor, conflicts);
    if (refused != cudaSuccess) operation.work = [&device, refused] { device.fail(refused, "SIMCUDA_CHECK=memory"); };
  }
  if (operation.tells_host && races::enabled()) {
    operation.work = [work = std::move(operation.work), before = stream.mark()] {
      work();
      races::learn(*before);
    };
  }
  if (operation.work) stream.push(operation.name, std::move(operation.work), std::move(operation.begin));
  races::report(conflicts);
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

void refuse_implicit(const Stream& stream) {
  if (!stream.legacy() || !any_capture()) return;
  const std::lock_guard lock(graphs_mutex());
  for (const auto& capture : captures()) {
    for (const auto& member : capture->members) {
      check(!member.stream->blocking() || &member.stream->device() != &stream.device(), cudaErrorStreamCaptureImplicit);
    }
  }
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
