// Graphs: operations with their dependencies, captured or added explicitly.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "activity.h"
#include "operation.h"

namespace simcuda {

class Event;
struct Graph;
struct Conditional;

struct Node {
  Operation operation;
  Graph* graph = nullptr;
  int device = 0;
  unsigned long long id = 0;     // unique in its graph
  std::vector<Node*> needs;      // dependencies, without duplicates
  std::shared_ptr<Event> event;  // for event record and event wait nodes
  std::shared_ptr<Graph> child;  // for a child graph node
  // For a conditional node.
  std::shared_ptr<Conditional> conditional;
  cudaGraphConditionalNodeType condition = cudaGraphCondTypeIf;
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<cudaGraph_t> body_handles;
  Node* cloned_from = nullptr;  // only used to compare graphs

  cudaGraphNode_t handle() { return reinterpret_cast<cudaGraphNode_t>(this); }
  cudaGraphNodeType type() const { return operation.type; }
};

// The value that controls a conditional node.
struct Conditional {
  cudaGraphConditionalHandle handle;
  unsigned default_value;
  bool assign_default;  // at each launch
};

// An object of the program that lives while graphs need it. CUDA Runtime API, "CUDA user objects".
struct UserObject {
  void* object;
  cudaHostFn_t destroy;
  std::atomic<long long> references;
};

using UserReferences = std::map<UserObject*, unsigned>;
void retain(UserObject& object, unsigned count);
void release(UserObject& object, unsigned count);  // calls `destroy` after the last reference, in a thread of the pool

struct Graph {
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  std::vector<std::shared_ptr<Node>> nodes;
  UserReferences user_objects;
  std::map<cudaGraphConditionalHandle, std::shared_ptr<Conditional>> conditionals;
  bool part = false;  // whether another graph owns it
  unsigned long long next_id = 0;
  const std::uint32_t number = activity::next_graph();  // for observers

  cudaGraph_t handle() { return reinterpret_cast<cudaGraph_t>(this); }
  // Throws Error(cudaErrorInvalidValue) if one of `needs` is not a node of this graph.
  Node& add(Operation operation, int device, const std::vector<Node*>& needs);
  void remove(Node& node);
  bool has(const Node* node) const;
  std::shared_ptr<Graph> clone() const;
  // Returns the nodes in topological order, the oldest first where several may come next, or the newest. Throws
  // Error(cudaErrorInvalidValue) for a cycle.
  std::vector<Node*> sorted(bool newest_first = false) const;
};

// Returns a node's number for observers, which is unique: the upper half is the graph's number, as in CUPTI.
constexpr std::uint64_t node_number(std::uint32_t graph, unsigned long long id) {
  return std::uint64_t{graph} << 32 | id;
}

// Guards all graphs, captures, and the capture state of streams and events. A thread that holds it must not wait for
// work.
std::recursive_mutex& graphs_mutex();

std::shared_ptr<Graph> new_graph();
void forget_graph(cudaGraph_t handle);                  // and its nodes; references to it stay valid
std::shared_ptr<Graph> find_graph(cudaGraph_t handle);  // throws Error(cudaErrorInvalidValue)
Node& find_node(cudaGraphNode_t handle);                // throws the same error

}  // namespace simcuda
