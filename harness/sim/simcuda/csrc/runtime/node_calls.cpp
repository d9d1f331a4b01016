// The interface: graph nodes.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "call.h"
#include "event.h"
#include "exec.h"
#include "graph.h"
#include "nodes.h"
#include "versions.h"

using namespace simcuda;

namespace {

cudaGraphNodeParams params_of(cudaGraphNodeType type) {
  cudaGraphNodeParams params{};
  params.type = type;
  return params;
}

cudaGraphNodeParams params_of(const cudaKernelNodeParams& kernel) {
  auto params = params_of(cudaGraphNodeTypeKernel);
  params.kernel = {kernel.func,           kernel.gridDim,      kernel.blockDim,
                   kernel.sharedMemBytes, kernel.kernelParams, kernel.extra};
  return params;
}

cudaGraphNodeParams params_of(const cudaMemcpy3DParms& copy) {
  auto params = params_of(cudaGraphNodeTypeMemcpy);
  params.memcpy.copyParams = copy;
  return params;
}

cudaGraphNodeParams params_of(const cudaMemsetParams& set) {
  auto params = params_of(cudaGraphNodeTypeMemset);
  params.memset = {set.dst, set.pitch, set.value, set.elementSize, set.width, set.height};
  return params;
}

cudaGraphNodeParams params_of(const cudaHostNodeParams& host) {
  auto params = params_of(cudaGraphNodeTypeHost);
  params.host = {host.fn, host.userData};
  return params;
}

cudaMemcpy3DParms plain_copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpy3DParms copy{};
  copy.srcPtr = {const_cast<void*>(from), bytes, bytes, 1};
  copy.dstPtr = {to, bytes, bytes, 1};
  copy.extent = {bytes, 1, 1};
  copy.kind = kind;
  return copy;
}

void add(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, std::size_t count,
         cudaGraphNodeParams& params) {
  check(node != nullptr);
  *node = add_node(*find_graph(graph), nodes_of(needs, count), params).handle();
}

const cudaGraphNodeParams& params_of(cudaGraphNode_t node, cudaGraphNodeType type) {
  const Node& found = find_node(node);
  check(found.type() == type);
  return found.operation.params;
}

void set_exec(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraphNodeParams& params) {
  const auto found = find_exec(exec);
  const std::lock_guard lock(graphs_mutex());
  const Node& of = find_node(node);
  check(of.type() == params.type);
  if (params.type == cudaGraphNodeTypeEventRecord) {
    found->set_event(of, find_event(params.eventRecord.event));
  } else if (params.type == cudaGraphNodeTypeWaitEvent) {
    found->set_event(of, find_event(params.eventWait.event));
  } else {
    found->replace(of, operation_of(params));
  }
}

// Writes the nodes if `out` is given, and their number.
void list(const std::vector<Node*>& nodes, cudaGraphNode_t* out, std::size_t* count) {
  check(count != nullptr);
  if (out != nullptr) {
    for (std::size_t i = 0; i < *count; ++i) out[i] = i < nodes.size() ? nodes[i]->handle() : nullptr;
    *count = std::min(*count, nodes.size());
  } else {
    *count = nodes.size();
  }
}

}  // namespace

SIMCUDA_EXPORT cudaError_t SIMCUDA_WITH_EDGES(cudaGraphAddNode, _v2)(cudaGraphNode_t* node, cudaGraph_t graph,
                                                                     const cudaGraphNode_t* needs,
                                                                     const cudaGraphEdgeData*, size_t count,
                                                                     cudaGraphNodeParams* params) {
  SIMCUDA_CALL(device, {
    check(params != nullptr);
    add(node, graph, needs, count, *params);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,
                                                 size_t count) {
  SIMCUDA_CALL(device, {
    auto params = params_of(cudaGraphNodeTypeEmpty);
    add(node, graph, needs, count, params);
  });
}

// Defines the calls for nodes whose parameters are a structure.
#define PARAMS_CALLS(KIND, PARAMS)                                                                                 \
  SIMCUDA_EXPORT cudaError_t cudaGraphAdd##KIND##Node(                                                             \
      cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, const PARAMS* given) { \
    SIMCUDA_CALL(device, {                                                                                         \
      check(given != nullptr);                                                                                     \
      auto params = params_of(*given);                                                                             \
      add(node, graph, needs, count, params);                                                                      \
    });                                                                                                            \
  }                                                                                                                \
  SIMCUDA_EXPORT cudaError_t cudaGraph##KIND##NodeSetParams(cudaGraphNode_t node, const PARAMS* given) {           \
    SIMCUDA_CALL(device, {                                                                                         \
      check(given != nullptr);                                                                                     \
      auto params = params_of(*given);                                                                             \
      set_node(find_node(node), params);                                                                           \
    });                                                                                                            \
  }                                                                                                                \
  SIMCUDA_EXPORT cudaError_t cudaGraphExec##KIND##NodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,        \
                                                                const PARAMS* given) {                             \
    SIMCUDA_CALL(device, {                                                                                         \
      check(given != nullptr);                                                                                     \
      auto params = params_of(*given);                                                                             \
      set_exec(exec, node, params);                                                                                \
    });                                                                                                            \
  }

PARAMS_CALLS(Kernel, cudaKernelNodeParams)
PARAMS_CALLS(Memcpy, cudaMemcpy3DParms)
PARAMS_CALLS(Memset, cudaMemsetParams)
PARAMS_CALLS(Host, cudaHostNodeParams)

// Defines the calls for nodes of events. `field` is the member of cudaGraphNodeParams.
#define EVENT_CALLS(KIND, type, field)                                                                                 \
  SIMCUDA_EXPORT cudaError_t cudaGraphAdd##KIND##Node(cudaGraphNode_t* node, cudaGraph_t graph,                        \
                                                      const cudaGraphNode_t* needs, size_t count, cudaEvent_t event) { \
    SIMCUDA_CALL(device, {                                                                                             \
      auto params = params_of(type);                                                                                   \
      params.field.event = event;                                                                                      \
      add(node, graph, needs, count, params);                                                                          \
    });                                                                                                                \
  }                                                                                                                    \
  SIMCUDA_EXPORT cudaError_t cudaGraph##KIND##NodeGetEvent(cudaGraphNode_t node, cudaEvent_t* event) {                 \
    SIMCUDA_CALL(device, {                                                                                             \
      check(event != nullptr);                                                                                         \
      params_of(node, type);                                                                                           \
      *event = find_node(node).event->handle();                                                                        \
    });                                                                                                                \
  }                                                                                                                    \
  SIMCUDA_EXPORT cudaError_t cudaGraph##KIND##NodeSetEvent(cudaGraphNode_t node, cudaEvent_t event) {                  \
    SIMCUDA_CALL(device, {                                                                                             \
      auto params = params_of(type);                                                                                   \
      params.field.event = event;                                                                                      \
      set_node(find_node(node), params);                                                                               \
    });                                                                                                                \
  }                                                                                                                    \
  SIMCUDA_EXPORT cudaError_t cudaGraphExec##KIND##NodeSetEvent(cudaGraphExec_t exec, cudaGraphNode_t node,             \
                                                               cudaEvent_t event) {                                    \
    SIMCUDA_CALL(device, {                                                                                             \
      auto params = params_of(type);                                                                                   \
      params.field.event = event;                                                                                      \
      set_exec(exec, node, params);                                                                                    \
    });                                                                                                                \
  }

EVENT_CALLS(EventRecord, cudaGraphNodeTypeEventRecord, eventRecord)
EVENT_CALLS(EventWait, cudaGraphNodeTypeWaitEvent, eventWait)

SIMCUDA_EXPORT cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                                    const cudaGraphNode_t* needs, size_t count, void* to,
                                                    const void* from, size_t bytes, cudaMemcpyKind kind) {
  SIMCUDA_CALL(device, {
    auto params = params_of(plain_copy(to, from, bytes, kind));
    add(node, graph, needs, count, params);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                      const cudaGraphNode_t* needs, size_t count, cudaGraph_t child) {
  SIMCUDA_CALL(device, {
    auto params = params_of(cudaGraphNodeTypeGraph);
    params.graph.graph = child;
    add(node, graph, needs, count, params);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                    const cudaGraphNode_t* needs, size_t count,
                                                    cudaMemAllocNodeParams* alloc) {
  SIMCUDA_CALL(device, {
    check(alloc != nullptr);
    auto params = params_of(cudaGraphNodeTypeMemAlloc);
    params.alloc.poolProps = alloc->poolProps;
    params.alloc.accessDescs = alloc->accessDescs;
    params.alloc.accessDescCount = alloc->accessDescCount;
    params.alloc.bytesize = alloc->bytesize;
    add(node, graph, needs, count, params);
    alloc->dptr = params.alloc.dptr;
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                   const cudaGraphNode_t* needs, size_t count, void* address) {
  SIMCUDA_CALL(device, {
    auto params = params_of(cudaGraphNodeTypeMemFree);
    params.free.dptr = address;
    add(node, graph, needs, count, params);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphNodeSetParams(cudaGraphNode_t node, cudaGraphNodeParams* params) {
  SIMCUDA_CALL(device, {
    check(params != nullptr);
    set_node(find_node(node), *params);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphExecNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                      cudaGraphNodeParams* params) {
  SIMCUDA_CALL(device, {
    check(params != nullptr);
    set_exec(exec, node, *params);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* kernel) {
  SIMCUDA_CALL(device, {
    check(kernel != nullptr);
    const auto& params = params_of(node, cudaGraphNodeTypeKernel).kernel;
    *kernel = {params.func, params.gridDim, params.blockDim, params.sharedMemBytes, params.kernelParams, params.extra};
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* copy) {
  SIMCUDA_CALL(device, {
    check(copy != nullptr);
    *copy = params_of(node, cudaGraphNodeTypeMemcpy).memcpy.copyParams;
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* to, const void* from,
                                                          size_t bytes, cudaMemcpyKind kind) {
  SIMCUDA_CALL(device, {
    auto params = params_of(plain_copy(to, from, bytes, kind));
    set_node(find_node(node), params);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t exec, cudaGraphNode_t node, void* to,
                                                              const void* from, size_t bytes, cudaMemcpyKind kind) {
  SIMCUDA_CALL(device, {
    auto params = params_of(plain_copy(to, from, bytes, kind));
    set_exec(exec, node, params);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* set) {
  SIMCUDA_CALL(device, {
    check(set != nullptr);
    const auto& params = params_of(node, cudaGraphNodeTypeMemset).memset;
    *set = {params.dst, params.pitch, params.value, params.elementSize, params.width, params.height};
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node, cudaHostNodeParams* host) {
  SIMCUDA_CALL(device, {
    check(host != nullptr);
    const auto& params = params_of(node, cudaGraphNodeTypeHost).host;
    *host = {params.fn, params.userData};
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphMemAllocNodeGetParams(cudaGraphNode_t node, cudaMemAllocNodeParams* alloc) {
  SIMCUDA_CALL(device, {
    check(alloc != nullptr);
    const auto& params = params_of(node, cudaGraphNodeTypeMemAlloc).alloc;
    *alloc = {params.poolProps, params.accessDescs, params.accessDescCount, params.bytesize, params.dptr};
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphMemFreeNodeGetParams(cudaGraphNode_t node, void* address) {
  SIMCUDA_CALL(device, {
    check(address != nullptr);
    *static_cast<void**>(address) = params_of(node, cudaGraphNodeTypeMemFree).free.dptr;
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* graph) {
  SIMCUDA_CALL(device, {
    check(graph != nullptr);
    params_of(node, cudaGraphNodeTypeGraph);
    *graph = find_node(node).child->handle();
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  SIMCUDA_CALL(device, {
    check(type != nullptr);
    *type = find_node(node).type();
  });
}

SIMCUDA_EXPORT cudaError_t SIMCUDA_WITH_EDGES(cudaGraphNodeGetDependencies,
                                              _v2)(cudaGraphNode_t node, cudaGraphNode_t* needs,
                                                   cudaGraphEdgeData* edges, size_t* count) {
  SIMCUDA_CALL(device, {
    const std::lock_guard lock(graphs_mutex());
    list(find_node(node).needs, needs, count);
    if (edges != nullptr) std::fill_n(edges, *count, cudaGraphEdgeData{});
  });
}

SIMCUDA_EXPORT cudaError_t SIMCUDA_WITH_EDGES(cudaGraphNodeGetDependentNodes,
                                              _v2)(cudaGraphNode_t node, cudaGraphNode_t* dependents,
                                                   cudaGraphEdgeData* edges, size_t* count) {
  SIMCUDA_CALL(device, {
    const std::lock_guard lock(graphs_mutex());
    Node& found = find_node(node);
    std::vector<Node*> all;
    for (const auto& other : found.graph->nodes) {
      if (std::find(other->needs.begin(), other->needs.end(), &found) != other->needs.end()) all.push_back(other.get());
    }
    list(all, dependents, count);
    if (edges != nullptr) std::fill_n(edges, *count, cudaGraphEdgeData{});
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
  SIMCUDA_CALL(device, {
    const std::lock_guard lock(graphs_mutex());
    Node& found = find_node(node);
    check(found.type() != cudaGraphNodeTypeMemAlloc && found.type() != cudaGraphNodeTypeMemFree, cudaErrorNotSupported);
    found.graph->remove(found);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned enabled) {
  SIMCUDA_CALL(device, {
    const std::lock_guard lock(graphs_mutex());
    const Node& found = find_node(node);
    check(found.type() == cudaGraphNodeTypeKernel || found.type() == cudaGraphNodeTypeMemset ||
          found.type() == cudaGraphNodeTypeMemcpy);
    find_exec(exec)->enable(found, enabled != 0);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t exec, cudaGraphNode_t node, unsigned* enabled) {
  SIMCUDA_CALL(device, {
    check(enabled != nullptr);
    const std::lock_guard lock(graphs_mutex());
    *enabled = find_exec(exec)->enabled(find_node(node));
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  SIMCUDA_CALL(device, {
    const std::lock_guard lock(graphs_mutex());
    std::vector<Node*> all;
    for (const auto& node : find_graph(graph)->nodes) all.push_back(node.get());
    list(all, nodes, count);
  });
}

SIMCUDA_EXPORT cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  SIMCUDA_CALL(device, {
    const std::lock_guard lock(graphs_mutex());
    std::vector<Node*> roots;
    for (const auto& node : find_graph(graph)->nodes) {
      if (node->needs.empty()) roots.push_back(node.get());
    }
    list(roots, nodes, count);
  });
}

SIMCUDA_EXPORT cudaError_t SIMCUDA_WITH_EDGES(cudaGraphGetEdges, _v2)(cudaGraph_t graph, cudaGraphNode_t* from,
                                                                      cudaGraphNode_t* to, cudaGraphEdgeData* edges,
                                                                      size_t* count) {
  SIMCUDA_CALL(device, {
    check(count != nullptr && (from == nullptr) == (to == nullptr));
    const std::lock_guard lock(graphs_mutex());
    std::vector<std::pair<Node*, Node*>> all;
    for (const auto& node : find_graph(graph)->nodes) {
      for (Node* const need : node->needs) all.emplace_back(need, node.get());
    }
    if (from == nullptr) {
      *count = all.size();
      return;
    }
    for (std::size_t i = 0; i < *count; ++i) {
      from[i] = i < all.size() ? all[i].first->handle() : nullptr;
      to[i] = i < all.size() ? all[i].second->handle() : nullptr;
      if (edges != nullptr) edges[i] = {};
    }
    *count = std::min(*count, all.size());
  });
}

SIMCUDA_EXPORT cudaError_t SIMCUDA_WITH_EDGES(cudaGraphAddDependencies,
                                              _v2)(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                   const cudaGraphNode_t* to, const cudaGraphEdgeData*, size_t count) {
  SIMCUDA_CALL(device, {
    const std::lock_guard lock(graphs_mutex());
    const auto found = find_graph(graph);
    const auto first = nodes_of(from, count), second = nodes_of(to, count);
    for (std::size_t i = 0; i < count; ++i) {
      auto& needs = second[i]->needs;
      check(found->has(first[i]) && found->has(second[i]) && first[i] != second[i]);
      check(std::find(needs.begin(), needs.end(), first[i]) == needs.end());
      needs.push_back(first[i]);
    }
  });
}

SIMCUDA_EXPORT cudaError_t SIMCUDA_WITH_EDGES(cudaGraphRemoveDependencies,
                                              _v2)(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                   const cudaGraphNode_t* to, const cudaGraphEdgeData*, size_t count) {
  SIMCUDA_CALL(device, {
    const std::lock_guard lock(graphs_mutex());
    const auto found = find_graph(graph);
    const auto first = nodes_of(from, count), second = nodes_of(to, count);
    for (std::size_t i = 0; i < count; ++i) {
      check(found->has(first[i]) && found->has(second[i]));
      check(std::erase(second[i]->needs, first[i]) == 1);
    }
  });
}
