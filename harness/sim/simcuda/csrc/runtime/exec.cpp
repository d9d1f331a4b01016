#include "exec.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "activity.h"
#include "capture.h"
#include "context.h"
#include "device.h"
#include "error.h"
#include "event.h"
#include "graph_memory.h"
#include "handles.h"
#include "ipc_event.h"
#include "ledger.h"
#include "memory_check.h"
#include "process.h"

namespace simcuda {

namespace {

Handles<Exec>& execs() {
  static auto* const execs = new Handles<Exec>;
  return *execs;
}

void collect(const Graph& graph, std::vector<std::shared_ptr<Conditional>>& conditionals) {
  for (const auto& [handle, conditional] : graph.conditionals) conditionals.push_back(conditional);
  for (const auto& node : graph.nodes) {
    if (node->child) collect(*node->child, conditionals);
    for (const auto& body : node->bodies) collect(*body, conditionals);
  }
}

}  // namespace

Exec::Exec(const Graph& graph, unsigned long long flags) : flags_(flags) {
  const std::lock_guard lock(graphs_mutex());
  program_ = std::make_shared<Program>();
  append(*program_, graph, nullptr, {});
  source_ = graph.clone();
  forget_graph(source_->handle());
  collect(graph, conditionals_);
  for (const auto& conditional : conditionals_) values_[conditional->handle] = conditional->default_value;
}

std::vector<std::size_t> Exec::append(Program& program, const Graph& graph, const unsigned long long* child,
                                      const std::vector<std::size_t>& entry) const {
  std::map<const Node*, std::vector<std::size_t>> ends;  // the last steps of each node
  std::set<const Node*> needed;
  for (const Node* const node : graph.sorted(pool().order() == work::Order::reversed)) {
    const unsigned long long number = child ? *child : node->id;
    std::vector<std::size_t> needs = node->needs.empty() ? entry : std::vector<std::size_t>();
    for (const Node* const need : node->needs) {
      needed.insert(need);
      needs.insert(needs.end(), ends[need].begin(), ends[need].end());
    }
    if (node->type() == cudaGraphNodeTypeGraph) {
      ends[node] = append(program, *node->child, &number, needs);
      continue;
    }
    Step step;
    step.node = number;
    step.top = child == nullptr;
    step.activity_node = node_number(step.top ? number_ : graph.number, node->id);
    step.type = node->type();
    step.device = node->device;
    step.operation = node->operation;
    step.event = node->event;
    step.needs = std::move(needs);
    if (node->type() == cudaGraphNodeTypeConditional) {
      step.conditional = node->conditional->handle;
      step.condition = node->condition;
      for (const auto& body : node->bodies) {
        step.bodies.push_back(std::make_shared<Program>());
        append(*step.bodies.back(), *body, &number, {});
      }
    }
    ends[node] = {program.size()};
    program.push_back(std::move(step));
  }
  if (graph.nodes.empty()) return entry;
  std::vector<std::size_t> last;
  for (const auto& [node, places] : ends) {
    if (!needed.contains(node)) last.insert(last.end(), places.begin(), places.end());
  }
  return last;
}

cudaError_t Exec::launch(Stream& stream) {
  Device& device = stream.device();
  if (device.error() != cudaSuccess) return device.error();
  wake(device);
  if (any_capture()) {
    const std::lock_guard lock(graphs_mutex());
    if (const auto capture = capture_of(stream)) {
      if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
      Capture::Member& member = *capture->member(stream);
      Node& node = capture->graph->add(bare_operation(cudaGraphNodeTypeGraph, "graph"), device.index, member.tail);
      node.child = source_->clone();
      node.child->part = true;
      member.tail = {&node};
      return cudaSuccess;
    }
    forbid_implicit(stream, "cudaGraphLaunch");
  }
  const std::lock_guard lock(mutex_);
  if (flags_ & cudaGraphInstantiateFlagAutoFreeOnLaunch) {
    for (const Step& step : *program_) free_if_left(step.operation);
  }
  for (const Step& step : *program_) {
    if (!step.enabled || !step.operation.at_launch) continue;
    if (const cudaError_t error = step.operation.at_launch(); error != cudaSuccess) return error;
  }
  const auto self = shared_from_this();
  const auto program = program_;
  const auto ticket = activity::ticket(stream.activity_id(), number_);
  std::vector<Item> items;
  if (last_) races::wait(stream.timeline(), *last_);
  if (last_ && !last_->done()) items.push_back({last_, nullptr, nullptr});
  races::Replay replay(stream.timeline(), lanes_, races::enabled() ? program->size() : 0);
  items.push_back({nullptr,
                   [self] {
                     for (const auto& conditional : self->conditionals_) {
                       if (conditional->assign_default) self->values_[conditional->handle] = conditional->default_value;
                     }
                   },
                   nullptr});
  races::Conflicts conflicts;
  std::size_t begin = 0;
  const auto flush = [&](std::size_t end, std::shared_ptr<Mark> mark) {
    Work work;
    if (begin < end) {
      work = [self, program, begin, end, ticket] {
        const activity::Scope scope(ticket);
        self->run(*program, begin, end);
      };
    }
    if (work || mark) items.push_back({nullptr, std::move(work), std::move(mark)});
  };
  for (std::size_t i = 0; i < program->size(); ++i) {
    const Step& step = (*program)[i];
    static const std::vector<races::Access> none;
    replay.node(i, step.needs, step.enabled ? step.operation.accesses : none, step.operation.origin);
    if (step.operation.unknown && step.enabled) races::assume_all_written();
    if (step.type == cudaGraphNodeTypeKernel && step.enabled) {
      Device& user = simcuda::device(step.device);
      const races::Accessor accessor{step.operation.origin, user.index, stream.id(), true};
      const cudaError_t refused = refused_accesses(user, step.operation.accesses, accessor, conflicts);
      if (refused != cudaSuccess) {
        flush(i, nullptr);
        items.push_back({nullptr, [&user, refused] { user.fail(refused, "SIMCUDA_CHECK=memory"); }, nullptr});
        begin = i + 1;
        continue;
      }
    }
    if (step.operation.begin && step.enabled) {
      flush(i, nullptr);
      auto begun = std::make_shared<Mark>();
      items.push_back({nullptr,
                       [self, program, i, begun] {
                         const Step& step = (*program)[i];
                         begin_guarded(simcuda::device(step.device), step.operation.name, step.operation.begin, begun);
                       },
                       nullptr});
      items.push_back({std::move(begun), nullptr, nullptr});
      begin = i;
      continue;
    }
    if (!step.event || !step.enabled) continue;
    if (step.type == cudaGraphNodeTypeEventRecord) {
      auto mark = std::make_shared<Mark>();
      replay.record(i, *mark);
      flush(i, nullptr);
      Work finish;
      if (step.event->page)
        finish = [page = step.event->page, number = step.event->page->record()] { page->finish(number); };
      items.push_back({nullptr, std::move(finish), mark});
      step.event->set_mark(std::move(mark));
    } else {
      flush(i, nullptr);
      auto mark = step.event->page ? IpcEventPage::mark(step.event->page) : step.event->mark();
      if (const auto known = step.event->mark()) replay.wait(i, *known);
      if (mark) items.push_back({std::move(mark), nullptr, nullptr});
    }
    begin = i + 1;
  }
  const races::Conflicts of_order = replay.finish();
  conflicts.insert(conflicts.end(), of_order.begin(), of_order.end());
  last_ = std::make_shared<Mark>();
  races::record(stream.timeline(), *last_);
  flush(program->size(), nullptr);
  items.push_back({nullptr, nullptr, last_});
  stream.push(std::move(items));
  races::report(conflicts);
  return cudaSuccess;
}

void Exec::run(const Program& program, std::size_t begin, std::size_t end, bool whole) {
  const ConditionScope scope(values_);
  for (std::size_t i = begin; i < end; ++i) {
    const Step& step = program[i];
    if (!step.enabled) continue;
    if (whole && step.operation.begin) {
      const auto begun = std::make_shared<Mark>();
      begin_guarded(device(step.device), step.operation.name, step.operation.begin, begun);
      begun->wait();
    }
    if (step.type == cudaGraphNodeTypeConditional) {
      run_conditional(step);
    } else {
      if (step.type == cudaGraphNodeTypeKernel) ledger::count_kernel(device(step.device).number);
      run_guarded(device(step.device), step.operation.name, step.operation.work, step.activity_node);
    }
  }
}

void Exec::run_conditional(const Step& step) {
  unsigned& value = values_[step.conditional];
  const auto run_body = [&](std::size_t place) {
    if (place < step.bodies.size()) run(*step.bodies[place], 0, step.bodies[place]->size(), true);
  };
  switch (step.condition) {
    case cudaGraphCondTypeIf:
      run_body(value != 0 ? 0 : 1);
      break;
    case cudaGraphCondTypeWhile:
      while (value != 0 && device(step.device).error() == cudaSuccess && !pool().abandoned()) run_body(0);
      break;
    default:  // cudaGraphCondTypeSwitch
      run_body(value);
  }
}

Node* Exec::update(const Graph& graph, cudaGraphExecUpdateResult& result) {
  const std::lock_guard lock(graphs_mutex());
  const auto theirs = graph.sorted();
  const auto ours = source_->sorted();
  result = cudaGraphExecUpdateErrorTopologyChanged;
  if (theirs.size() != ours.size()) return theirs.empty() ? nullptr : theirs.back();
  std::map<const Node*, std::size_t> their_places, our_places;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    their_places[theirs[i]] = i;
    our_places[ours[i]] = i;
    const auto& a = theirs[i]->needs;
    const auto& b = ours[i]->needs;
    const bool same = a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const Node* one) {
                        return std::any_of(b.begin(), b.end(), [&](const Node* other) {
                          return our_places.at(other) == their_places.at(one);
                        });
                      });
    if (!same) return theirs[i];
    if (theirs[i]->type() != ours[i]->type()) {
      result = cudaGraphExecUpdateErrorNodeTypeChanged;
      return theirs[i];
    }
  }
  auto program = std::make_shared<Program>();
  append(*program, graph, nullptr, {});
  auto source = graph.clone();
  forget_graph(source->handle());
  // Nodes of the graph from which this one was instantiated still identify its steps.
  std::map<unsigned long long, unsigned long long> numbers;
  for (std::size_t i = 0; i < ours.size(); ++i) numbers[theirs[i]->id] = ours[i]->id;
  for (Step& step : *program) {
    step.node = numbers.at(step.node);
    if (step.top) step.activity_node = node_number(number_, step.node);
  }
  for (const auto& node : source->nodes) node->id = numbers.at(node->id);
  const std::lock_guard own(mutex_);
  for (std::size_t i = 0; i < program->size() && i < program_->size(); ++i)
    (*program)[i].enabled = (*program_)[i].enabled;
  program_ = std::move(program);
  source_ = std::move(source);
  result = cudaGraphExecUpdateSuccess;
  return nullptr;
}

Exec::Step& Exec::step(const Node& node) {
  program_ = std::make_shared<Program>(*program_);
  for (Step& step : *program_) {
    if (step.top && step.node == node.id && step.type == node.type()) return step;
  }
  throw Error(cudaErrorInvalidValue);
}

void Exec::replace(const Node& node, const Operation& operation) {
  const std::lock_guard lock(mutex_);
  step(node).operation = operation;
}

void Exec::set_event(const Node& node, std::shared_ptr<Event> event) {
  const std::lock_guard lock(mutex_);
  step(node).event = std::move(event);
}

void Exec::enable(const Node& node, bool enabled) {
  const std::lock_guard lock(mutex_);
  step(node).enabled = enabled;
}

bool Exec::enabled(const Node& node) const {
  const std::lock_guard lock(mutex_);
  for (const Step& step : *program_) {
    if (step.top && step.node == node.id && step.type == node.type()) return step.enabled;
  }
  throw Error(cudaErrorInvalidValue);
}

std::shared_ptr<Exec> find_exec(cudaGraphExec_t handle) {
  if (auto exec = execs().find(handle)) return exec;
  throw Error(cudaErrorInvalidValue);
}

void add_exec(std::shared_ptr<Exec> exec) {
  execs().add(std::move(exec));
  ledger::count_object(LedgerObject::executable_graph, 1);
}
std::shared_ptr<Exec> remove_exec(cudaGraphExec_t handle) {
  auto exec = execs().remove(handle);
  if (exec) ledger::count_object(LedgerObject::executable_graph, -1);
  return exec;
}

}  // namespace simcuda
