#include "nodes.h"

#include <utility>

#include "copy.h"
#include "device.h"
#include "error.h"
#include "event.h"
#include "graph_memory.h"
#include "kernels.h"

namespace simcuda {

namespace {

// Checks the nodes in the body of a conditional node, or in the graph of a child graph node. CUDA Runtime API,
// cudaConditionalNodeParams::phGraph_out and cudaChildGraphNodeParams::graph.
void check_child(const Graph& graph) {
  for (const auto& node : graph.nodes) {
    check(node->type() != cudaGraphNodeTypeConditional && node->type() != cudaGraphNodeTypeMemAlloc &&
              node->type() != cudaGraphNodeTypeMemFree,
          cudaErrorNotSupported);
  }
}

void add_bodies(Node& node, Graph& graph, cudaConditionalNodeParams& params) {
  const auto found = graph.conditionals.find(params.handle);
  check(found != graph.conditionals.end());
  switch (params.type) {
    case cudaGraphCondTypeIf:
      check(params.size == 1 || params.size == 2);
      break;
    case cudaGraphCondTypeWhile:
      check(params.size == 1);
      break;
    case cudaGraphCondTypeSwitch:
      check(params.size > 0);
      break;
    default:
      throw Error(cudaErrorInvalidValue);
  }
  node.conditional = found->second;
  node.condition = params.type;
  for (unsigned i = 0; i < params.size; ++i) {
    auto body = new_graph();
    body->part = true;
    node.body_handles.push_back(body->handle());
    node.bodies.push_back(std::move(body));
  }
  params.phGraph_out = node.body_handles.data();
  node.operation.params.conditional = params;
}

}  // namespace

std::vector<Node*> nodes_of(const cudaGraphNode_t* handles, std::size_t count) {
  check(handles != nullptr || count == 0);
  std::vector<Node*> nodes;
  for (std::size_t i = 0; i < count; ++i) nodes.push_back(&find_node(handles[i]));
  return nodes;
}

Operation operation_of(cudaGraphNodeParams& params) {
  switch (params.type) {
    case cudaGraphNodeTypeKernel: {
      auto& kernel = params.kernel;
      check(kernel.extra == nullptr, cudaErrorNotSupported);
      auto operation =
          kernel_operation(kernel.func, kernel.gridDim, kernel.blockDim, kernel.sharedMemBytes, kernel.kernelParams);
      check(operation.has_value(), cudaErrorNotSupported);
      return std::move(*operation);
    }
    case cudaGraphNodeTypeMemcpy:
      return copy_operation(params.memcpy.copyParams);
    case cudaGraphNodeTypeMemset:
      return fill_operation(params.memset);
    case cudaGraphNodeTypeHost: {
      check(params.host.fn != nullptr);
      Operation operation;
      operation.type = cudaGraphNodeTypeHost;
      operation.name = "host function";
      operation.work = host_work(params.host.fn, params.host.userData);
      operation.params.host = params.host;
      return operation;
    }
    case cudaGraphNodeTypeEmpty:
      return bare_operation(cudaGraphNodeTypeEmpty, "empty");
    case cudaGraphNodeTypeMemAlloc: {
      auto& alloc = params.alloc;
      check(alloc.poolProps.location.type == cudaMemLocationTypeDevice);
      return allocation_operation(device(alloc.poolProps.location.id), alloc.bytesize, &alloc.dptr);
    }
    case cudaGraphNodeTypeMemFree:
      return free_operation(params.free.dptr);
    default:
      throw Error(cudaErrorNotSupported);
  }
}

Node& add_node(Graph& graph, const std::vector<Node*>& needs, cudaGraphNodeParams& params) {
  const std::lock_guard lock(graphs_mutex());
  for (const Node* const node : needs) check(graph.has(node));
  const int index = current_device().index;
  const auto bare = [&](const char* name) -> Node& {
    return graph.add(bare_operation(params.type, name), index, needs);
  };
  switch (params.type) {
    case cudaGraphNodeTypeGraph: {
      const auto child = find_graph(params.graph.graph);
      check_child(*child);
      Node& node = bare("graph");
      node.child = child->clone();
      node.child->part = true;
      return node;
    }
    case cudaGraphNodeTypeEventRecord: {
      auto event = find_event(params.eventRecord.event);
      Node& node = bare("event record");
      node.event = std::move(event);
      return node;
    }
    case cudaGraphNodeTypeWaitEvent: {
      auto event = find_event(params.eventWait.event);
      Node& node = bare("event wait");
      node.event = std::move(event);
      return node;
    }
    case cudaGraphNodeTypeConditional: {
      Node& node = bare("conditional");
      try {
        add_bodies(node, graph, params.conditional);
      } catch (...) {
        graph.remove(node);
        throw;
      }
      return node;
    }
    default:
      return graph.add(operation_of(params), index, needs);
  }
}

void set_node(Node& node, cudaGraphNodeParams& params) {
  const std::lock_guard lock(graphs_mutex());
  check(node.type() == params.type);
  switch (params.type) {
    case cudaGraphNodeTypeEventRecord:
      node.event = find_event(params.eventRecord.event);
      return;
    case cudaGraphNodeTypeWaitEvent:
      node.event = find_event(params.eventWait.event);
      return;
    case cudaGraphNodeTypeKernel:
    case cudaGraphNodeTypeMemcpy:
    case cudaGraphNodeTypeMemset:
    case cudaGraphNodeTypeHost:
      node.operation = operation_of(params);
      node.operation.params.type = params.type;
      return;
    default:
      throw Error(cudaErrorNotSupported);
  }
}

}  // namespace simcuda
