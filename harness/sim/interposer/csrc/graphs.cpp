// Graphs and their replays.
#include <map>
#include <mutex>
#include <vector>

#include "front.h"

using namespace interposer;

namespace {

std::mutex mutex;
std::map<cudaGraphExec_t, unsigned>& launches() {
  static auto* const launches = new std::map<cudaGraphExec_t, unsigned>;
  return *launches;
}

// Disables the last node that can be disabled.
void skip_one(cudaGraphExec_t exec, cudaGraph_t graph) {
  if (!injected(Fault::replay_skips_node)) return;
  std::size_t count = 0;
  NEXT(cudaGraphGetNodes)(graph, nullptr, &count);
  std::vector<cudaGraphNode_t> nodes(count);
  if (count == 0 || NEXT(cudaGraphGetNodes)(graph, nodes.data(), &count) != cudaSuccess) return;
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    cudaGraphNodeType type{};
    NEXT(cudaGraphNodeGetType)(*node, &type);
    if (type != cudaGraphNodeTypeKernel && type != cudaGraphNodeTypeMemcpy && type != cudaGraphNodeTypeMemset) continue;
    if (!strikes(Fault::replay_skips_node)) return;
    if (NEXT(cudaGraphNodeSetEnabled)(exec, *node, 0) == cudaSuccess) return;
    NEXT(cudaGetLastError)();
  }
}

cudaError_t made(cudaError_t error, const cudaGraphExec_t* exec, cudaGraph_t graph) {
  if (error != cudaSuccess) return error;
  {
    const std::lock_guard lock(mutex);
    launches().erase(*exec);
  }
  skip_one(*exec, graph);
  return error;
}

}  // namespace

EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  FRONT(cudaGraphInstantiate, any, (exec, graph, flags), { return made(next(exec, graph, flags), exec, graph); });
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  FRONT(cudaGraphInstantiateWithFlags, any, (exec, graph, flags),
        { return made(next(exec, graph, flags), exec, graph); });
}

EXPORT cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                  cudaGraphInstantiateParams* params) {
  FRONT(cudaGraphInstantiateWithParams, any, (exec, graph, params),
        { return made(next(exec, graph, params), exec, graph); });
}

EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  FRONT(cudaGraphLaunch, any, (exec, stream), {
    if (injected(Fault::replay_stale)) {
      const std::lock_guard lock(mutex);
      if (launches()[exec]++ > 0 && strikes(Fault::replay_stale)) return cudaSuccess;
    }
    return next(exec, stream);
  });
}
