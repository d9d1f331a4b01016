// The interface: stream capture.
#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>

#include "call.h"
#include "capture.h"
#include "context.h"
#include "graph.h"
#include "nodes.h"
#include "versions.h"

using namespace simcuda;

namespace {

cudaStreamCaptureStatus status(const std::shared_ptr<Capture>& capture) {
  if (!capture) return cudaStreamCaptureStatusNone;
  return capture->invalid ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive;
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
    // torch omits the argument for captures to a graph that it already has.
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
    // A node's handle is its address.
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
