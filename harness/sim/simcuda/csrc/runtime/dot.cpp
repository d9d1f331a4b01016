#include "dot.h"

#include <mutex>
#include <string>

namespace simcuda {

namespace {

const char* type_name(cudaGraphNodeType type) {
  switch (type) {
    case cudaGraphNodeTypeKernel:
      return "KERNEL";
    case cudaGraphNodeTypeMemcpy:
      return "MEMCPY";
    case cudaGraphNodeTypeMemset:
      return "MEMSET";
    case cudaGraphNodeTypeHost:
      return "HOST";
    case cudaGraphNodeTypeGraph:
      return "CHILD_GRAPH";
    case cudaGraphNodeTypeEmpty:
      return "EMPTY";
    case cudaGraphNodeTypeWaitEvent:
      return "EVENT_WAIT";
    case cudaGraphNodeTypeEventRecord:
      return "EVENT_RECORD";
    case cudaGraphNodeTypeMemAlloc:
      return "MEM_ALLOC";
    case cudaGraphNodeTypeMemFree:
      return "MEM_FREE";
    case cudaGraphNodeTypeConditional:
      return "CONDITIONAL";
    default:
      return "UNKNOWN";
  }
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    result += letter;
  }
  return result + '"';
}

void write(std::string& out, const Graph& graph, const std::string& prefix, bool verbose) {
  const auto name = [&](const Node& node) { return prefix + "_node_" + std::to_string(node.id); };
  for (const auto& node : graph.nodes) {
    std::string label = std::to_string(node->id) + " " + type_name(node->type()) + "\n" + node->operation.name;
    if (verbose) label += "\ndevice " + std::to_string(node->device);
    out += quoted(name(*node)) + " [shape=\"box\" label=" + quoted(label) + "];\n";
    for (const Node* const need : node->needs) out += quoted(name(*need)) + " -> " + quoted(name(*node)) + ";\n";
    if (node->child) {
      out += "subgraph " + quoted("cluster_" + name(*node)) + " {\n";
      write(out, *node->child, name(*node), verbose);
      out += "}\n";
    }
    for (std::size_t i = 0; i < node->bodies.size(); ++i) {
      const std::string body = name(*node) + "_body_" + std::to_string(i);
      out += "subgraph " + quoted("cluster_" + body) + " {\n";
      write(out, *node->bodies[i], body, verbose);
      out += "}\n";
    }
  }
}

}  // namespace

std::string dot(const Graph& graph, bool verbose) {
  const std::lock_guard lock(graphs_mutex());
  std::string out = "digraph dot {\n";
  write(out, graph, "graph", verbose);
  return out + "}\n";
}

}  // namespace simcuda
