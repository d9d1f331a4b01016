// The interface: calls of CUDA 12 that CUDA 13 lacks. Their graph edges have no data.
#include "versions.h"

#if CUDART_VERSION < 13000

#include "call.h"

// The header renames this to cudaStreamGetCaptureInfo_v2.
SIMCUDA_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* result,
                                                    unsigned long long* id, cudaGraph_t* graph,
                                                    const cudaGraphNode_t** dependencies, size_t* count) {
  return cudaStreamGetCaptureInfo_v3(stream, result, id, graph, dependencies, nullptr, count);
}

SIMCUDA_EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* dependencies,
                                                               size_t count, unsigned flags) {
  return cudaStreamUpdateCaptureDependencies_v2(stream, dependencies, nullptr, count, flags);
}

SIMCUDA_EXPORT cudaError_t cudaGraphAddNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,
                                            size_t count, cudaGraphNodeParams* params) {
  return cudaGraphAddNode_v2(node, graph, needs, nullptr, count, params);
}

SIMCUDA_EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* needs, size_t* count) {
  return cudaGraphNodeGetDependencies_v2(node, needs, nullptr, count);
}

SIMCUDA_EXPORT cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* dependents,
                                                          size_t* count) {
  return cudaGraphNodeGetDependentNodes_v2(node, dependents, nullptr, count);
}

SIMCUDA_EXPORT cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                                             size_t* count) {
  return cudaGraphGetEdges_v2(graph, from, to, nullptr, count);
}

SIMCUDA_EXPORT cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                    const cudaGraphNode_t* to, size_t count) {
  return cudaGraphAddDependencies_v2(graph, from, to, nullptr, count);
}

SIMCUDA_EXPORT cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                       const cudaGraphNode_t* to, size_t count) {
  return cudaGraphRemoveDependencies_v2(graph, from, to, nullptr, count);
}

#endif
