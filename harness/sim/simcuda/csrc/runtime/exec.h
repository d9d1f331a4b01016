// Executable graphs: what cudaGraphInstantiate makes of a graph, and their launches.
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "conditions.h"
#include "graph.h"

namespace simcuda {

class Exec : public std::enable_shared_from_this<Exec> {
 public:
  Exec(const Graph& graph, unsigned long long flags);
  Exec(const Exec&) = delete;
  Exec& operator=(const Exec&) = delete;

  cudaGraphExec_t handle() { return reinterpret_cast<cudaGraphExec_t>(this); }
  unsigned long long flags() const { return flags_; }
  std::uint32_t number() const { return number_; }  // for observers

  // Behind what was launched on the stream, and behind earlier launches of this graph. What the graph records is
  // pending from now on. On a captured stream it becomes a child graph node.
  cudaError_t launch(Stream& stream);

  // Takes over what the nodes of a graph of the same shape do. Returns the node that does not match, or null.
  // `result` tells why.
  Node* update(const Graph& graph, cudaGraphExecUpdateResult& result);
  // The same for one node, by its original.
  void replace(const Node& node, const Operation& operation);
  void set_event(const Node& node, std::shared_ptr<Event> event);
  void enable(const Node& node, bool enabled);
  bool enabled(const Node& node) const;

 private:
  struct Step;
  using Program = std::vector<Step>;
  struct Step {
    unsigned long long node = 0;  // its number in the graph; steps of child graphs have that of the child graph node
    bool top = true;              // of the graph itself, not of a child
    std::uint64_t told = 0;       // the number that observers know it by
    cudaGraphNodeType type;
    int device;
    Operation operation;
    bool enabled = true;
    std::shared_ptr<Event> event;
    cudaGraphConditionalHandle conditional = 0;
    cudaGraphConditionalNodeType condition = cudaGraphCondTypeIf;
    std::vector<std::shared_ptr<Program>> bodies;
  };

  void append(Program& program, const Graph& graph, const unsigned long long* child) const;
  // `whole`: all of a body of a conditional node. Otherwise the first halves of operations have begun before.
  void run(const Program& program, std::size_t begin, std::size_t end, bool whole = false);
  void run_conditional(const Step& step);
  Step& step(const Node& node);  // of a program that no launch uses; throws Error

  const unsigned long long flags_;
  const std::uint32_t number_ = activity::next_graph();
  mutable std::mutex mutex_;
  std::shared_ptr<Program> program_;  // launches share it: changes are made to a copy
  std::shared_ptr<Graph> source_;     // for captures of a launch; keeps the user objects
  std::shared_ptr<Mark> last_;
  std::vector<std::shared_ptr<Conditional>> conditionals_;
  Conditions values_;  // used by the launch that runs
};

void add_exec(std::shared_ptr<Exec> exec);
std::shared_ptr<Exec> find_exec(cudaGraphExec_t handle);    // throws Error(cudaErrorInvalidValue)
std::shared_ptr<Exec> remove_exec(cudaGraphExec_t handle);  // null if it is none

}  // namespace simcuda
