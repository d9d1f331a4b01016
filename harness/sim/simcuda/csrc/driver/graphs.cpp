// Graphs, captured or made node by node. CUDA Driver API, "Graph Management". The handles are the runtime's own.

#include "driver.h"

using namespace simcuda::driver;

namespace {

// The data of edges differ from those of ordinary dependencies only for kernels that begin before others end.
CUresult capture_info(const char* name, CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                      const CUgraphNode** needs, size_t* count) {
  return call(name, [&] {
    unsigned long long number = 0;
    cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
#if CUDART_VERSION >= 13000
    const cudaError_t error = cudaStreamGetCaptureInfo(stream, &found, &number, graph, needs, nullptr, count);
#else
    const cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &found, &number, graph, needs, count);
#endif
    *status = static_cast<CUstreamCaptureStatus>(found);
    if (id != nullptr) *id = number;
    return result(error);
  });
}

}  // namespace

DRIVER_API CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return capture_info(__func__, stream, status, id, nullptr, nullptr, nullptr);
}
DRIVER_API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                              CUgraph* graph, const CUgraphNode** needs, size_t* count) {
  return capture_info(__func__, stream, status, id, graph, needs, count);
}
DRIVER_API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                              CUgraph* graph, const CUgraphNode** needs, const CUgraphEdgeData** edges,
                                              size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return capture_info(__func__, stream, status, id, graph, needs, count);
}

DRIVER_API CUresult cuGraphCreate(CUgraph* graph, unsigned flags) { FORWARD(cudaGraphCreate(graph, flags)); }
DRIVER_API CUresult cuGraphClone(CUgraph* clone, CUgraph graph) { FORWARD(cudaGraphClone(clone, graph)); }
DRIVER_API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) { FORWARD(cudaGraphUpload(exec, stream)); }
DRIVER_API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  FORWARD(cudaGraphGetRootNodes(graph, nodes, count));
}
DRIVER_API CUresult cuGraphDestroyNode(CUgraphNode node) { FORWARD(cudaGraphDestroyNode(node)); }
// Types of nodes have the same numbers in the runtime.
DRIVER_API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  FORWARD(cudaGraphNodeGetType(node, reinterpret_cast<cudaGraphNodeType*>(type)));
}

DRIVER_API CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count) {
  FORWARD(cudaGraphAddEmptyNode(node, graph, needs, count));
}
DRIVER_API CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                             CUgraph child) {
  FORWARD(cudaGraphAddChildGraphNode(node, graph, needs, count, child));
}
DRIVER_API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
  FORWARD(cudaGraphChildGraphNodeGetGraph(node, graph));
}
DRIVER_API CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                       const CUDA_HOST_NODE_PARAMS* parameters) {
  static_assert(sizeof(CUDA_HOST_NODE_PARAMS) == sizeof(cudaHostNodeParams));
  FORWARD(cudaGraphAddHostNode(node, graph, needs, count, reinterpret_cast<const cudaHostNodeParams*>(parameters)));
}
DRIVER_API CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                         const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext) {
  static_assert(sizeof(CUDA_MEMSET_NODE_PARAMS) == sizeof(cudaMemsetParams));
  FORWARD(cudaGraphAddMemsetNode(node, graph, needs, count, reinterpret_cast<const cudaMemsetParams*>(parameters)));
}
DRIVER_API CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                              CUevent event) {
  FORWARD(cudaGraphAddEventRecordNode(node, graph, needs, count, event));
}
DRIVER_API CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                            CUevent event) {
  FORWARD(cudaGraphAddEventWaitNode(node, graph, needs, count, event));
}
DRIVER_API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  static_assert(sizeof(CUgraphExecUpdateResultInfo) == sizeof(cudaGraphExecUpdateResultInfo));
  FORWARD(cudaGraphExecUpdate(exec, graph, reinterpret_cast<cudaGraphExecUpdateResultInfo*>(info)));
}
#if CUDART_VERSION >= 13000
#define WITH_EDGES(function) function
#else
#define WITH_EDGES(function) function##_v2
#endif
static_assert(sizeof(CUgraphEdgeData) == sizeof(cudaGraphEdgeData));

DRIVER_API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges,
                                       size_t* count) {
  FORWARD(WITH_EDGES(cudaGraphGetEdges)(graph, from, to, reinterpret_cast<cudaGraphEdgeData*>(edges), count));
}
DRIVER_API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  return cuGraphGetEdges_v2(graph, from, to, nullptr, count);
}
DRIVER_API CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                              const CUgraphEdgeData* edges, size_t count) {
  FORWARD(
      WITH_EDGES(cudaGraphAddDependencies)(graph, from, to, reinterpret_cast<const cudaGraphEdgeData*>(edges), count));
}
DRIVER_API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                           size_t count) {
  return cuGraphAddDependencies_v2(graph, from, to, nullptr, count);
}
