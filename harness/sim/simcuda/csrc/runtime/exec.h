// Executable graphs, the results of cudaGraphInstantiate, and their launches.
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

  // Queues the graph after earlier work of the stream and after earlier launches of this graph. The events that it
  // records are pending from now on. On a capturing stream, the launch becomes a child graph node.
  cudaError_t launch(Stream& stream);

  // Takes over the operations of a graph with the same topology. Returns the node that does not match, or null.
  // `result` is the reason.
  Node* update(const Graph& graph, cudaGraphExecUpdateResult& result);
  // Do the same for one node, given as a node of the original graph.
  void replace(const Node& node, const Operation& operation);
  void set_event(const Node& node, std::shared_ptr<Event> event);
  void enable(const Node& node, bool enabled);
  bool enabled(const Node& node) const;

 private:
  struct Step;
  using Program = std::vector<Step>;
  struct Step {
    unsigned long long node = 0;      // number in the graph; for steps of child graphs, that of the child graph node
    bool top = true;                  // whether it belongs to the graph itself, not to a child
    std::uint64_t activity_node = 0;  // the node's number for observers
    cudaGraphNodeType type;
    int device;
    Operation operation;
    bool enabled = true;
    std::shared_ptr<Event> event;
    cudaGraphConditionalHandle conditional = 0;
    cudaGraphConditionalNodeType condition = cudaGraphCondTypeIf;
    std::vector<std::shared_ptr<Program>> bodies;
    std::vector<std::size_t> needs;  // the places of the steps that come before it
  };

  // `entry`: the places of the steps that all of the graph comes after. Returns those of the steps at its end.
  std::vector<std::size_t> append(Program& program, const Graph& graph, const unsigned long long* child,
                                  const std::vector<std::size_t>& entry) const;
  // Runs steps. With `whole`, for the body of a conditional node, also runs the first parts of operations, which have
  // otherwise begun before.
  void run(const Program& program, std::size_t begin, std::size_t end, bool whole = false);
  void run_conditional(const Step& step);
  Step& step(const Node& node);  // no launch may use the program; throws Error

  const unsigned long long flags_;
  const std::uint32_t number_ = activity::next_graph();
  mutable std::mutex mutex_;
  std::shared_ptr<Program> program_;  // launches share it, so changes are made to a copy
  std::shared_ptr<Graph> source_;     // for captures of a launch; keeps the user objects alive
  std::shared_ptr<Mark> last_;
  std::vector<std::shared_ptr<Conditional>> conditionals_;
  Conditions values_;                 // used by the running launch
  std::vector<std::uint32_t> lanes_;  // of races::Replay
};

void add_exec(std::shared_ptr<Exec> exec);
std::shared_ptr<Exec> find_exec(cudaGraphExec_t handle);    // throws Error(cudaErrorInvalidValue)
std::shared_ptr<Exec> remove_exec(cudaGraphExec_t handle);  // null if the handle is unknown

}  // namespace simcuda
