#include "graph.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "error.h"
#include "handles.h"
#include "process.h"

namespace simcuda {

namespace {

Handles<Graph>& graphs() {
  static auto* const graphs = new Handles<Graph>;
  return *graphs;
}

// Guarded by the mutex of graphs.
std::unordered_set<const Node*>& nodes() {
  static auto* const nodes = new std::unordered_set<const Node*>;
  return *nodes;
}

// Runs the destroy functions of user objects, one after the other.
work::Queue& destructions() {
  static auto* const queue = new std::shared_ptr<work::Queue>(std::make_shared<work::Queue>(pool(), 0));
  return **queue;
}

std::shared_ptr<Graph> clone_part(const Graph& graph) {
  auto copy = graph.clone();
  copy->part = true;
  return copy;
}

}  // namespace

std::recursive_mutex& graphs_mutex() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

void retain(UserObject& object, unsigned count) { object.references.fetch_add(count); }

void release(UserObject& object, unsigned count) {
  if (object.references.fetch_sub(count) != static_cast<long long>(count)) return;
  destructions().push({nullptr,
                       [&object] {
                         const InHostFunction inside;
                         object.destroy(object.object);
                         delete &object;
                       },
                       nullptr});
}

Graph::~Graph() {
  const std::lock_guard lock(graphs_mutex());
  for (const auto& node : nodes) simcuda::nodes().erase(node.get());
  for (const auto& [object, count] : user_objects) release(*object, count);
}

Node& Graph::add(Operation operation, int device, const std::vector<Node*>& needs) {
  const std::lock_guard lock(graphs_mutex());
  auto node = std::make_shared<Node>();
  for (Node* const one : needs) {
    check(has(one));
    if (std::find(node->needs.begin(), node->needs.end(), one) == node->needs.end()) node->needs.push_back(one);
  }
  node->operation = std::move(operation);
  node->operation.params.type = node->operation.type;
  node->graph = this;
  node->device = device;
  node->id = next_id++;
  simcuda::nodes().insert(node.get());
  nodes.push_back(std::move(node));
  return *nodes.back();
}

void Graph::remove(Node& node) {
  const std::lock_guard lock(graphs_mutex());
  simcuda::nodes().erase(&node);
  for (const auto& other : nodes) std::erase(other->needs, &node);
  std::erase_if(nodes, [&](const auto& one) { return one.get() == &node; });
}

bool Graph::has(const Node* node) const {
  const std::lock_guard lock(graphs_mutex());
  return simcuda::nodes().contains(node) && node->graph == this;
}

std::shared_ptr<Graph> Graph::clone() const {
  const std::lock_guard lock(graphs_mutex());
  auto copy = new_graph();
  std::map<const Node*, Node*> copies;
  for (Node* const node : sorted()) {
    std::vector<Node*> needs;
    for (const Node* const one : node->needs) needs.push_back(copies.at(one));
    Node& made = copy->add(node->operation, node->device, needs);
    copies[node] = &made;
    made.id = node->id;
    made.event = node->event;
    made.conditional = node->conditional;
    made.condition = node->condition;
    made.cloned_from = node;
    if (node->child) made.child = clone_part(*node->child);
    for (const auto& body : node->bodies) made.bodies.push_back(clone_part(*body));
    for (const auto& body : made.bodies) made.body_handles.push_back(body->handle());
  }
  copy->next_id = next_id;
  copy->conditionals = conditionals;
  copy->user_objects = user_objects;
  for (const auto& [object, count] : user_objects) retain(*object, count);
  return copy;
}

std::vector<Node*> Graph::sorted(bool newest_first) const {
  const std::lock_guard lock(graphs_mutex());
  std::unordered_map<const Node*, std::size_t> missing;
  std::unordered_map<const Node*, std::vector<std::size_t>> followers;
  std::set<std::size_t> free;  // places of the nodes that may come next
  for (std::size_t place = 0; place < nodes.size(); ++place) {
    const auto& needs = nodes[place]->needs;
    if (needs.empty()) free.insert(place);
    missing[nodes[place].get()] = needs.size();
    for (const Node* const need : needs) followers[need].push_back(place);
  }
  std::vector<Node*> order;
  while (!free.empty()) {
    const auto next = newest_first ? std::prev(free.end()) : free.begin();
    order.push_back(nodes[*next].get());
    free.erase(next);
    for (const std::size_t place : followers[order.back()]) {
      if (--missing[nodes[place].get()] == 0) free.insert(place);
    }
  }
  check(order.size() == nodes.size());
  return order;
}

std::shared_ptr<Graph> new_graph() {
  auto graph = std::make_shared<Graph>();
  graphs().add(graph);
  ledger::count_object(LedgerObject::graph, 1);
  return graph;
}

void forget_graph(cudaGraph_t handle) {
  const std::lock_guard lock(graphs_mutex());
  const auto graph = graphs().remove(handle);
  if (!graph) return;
  ledger::count_object(LedgerObject::graph, -1);
  for (const auto& node : graph->nodes) {
    if (node->child) forget_graph(node->child->handle());
    for (const auto& body : node->bodies) forget_graph(body->handle());
  }
}

std::shared_ptr<Graph> find_graph(cudaGraph_t handle) {
  if (auto graph = graphs().find(handle)) return graph;
  throw Error(cudaErrorInvalidValue);
}

Node& find_node(cudaGraphNode_t handle) {
  const std::lock_guard lock(graphs_mutex());
  auto* const node = reinterpret_cast<Node*>(handle);
  check(nodes().contains(node));
  return *node;
}

}  // namespace simcuda
