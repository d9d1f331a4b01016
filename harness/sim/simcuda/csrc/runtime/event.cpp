#include "event.h"

#include <utility>

#include "error.h"
#include "graph.h"
#include "handles.h"
#include "ledger.h"

namespace simcuda {

namespace {

Handles<Event>& events() {
  static auto* const events = new Handles<Event>;
  return *events;
}

}  // namespace

std::shared_ptr<Mark> Event::mark() const {
  const std::lock_guard lock(mutex_);
  return mark_;
}

void Event::set_mark(std::shared_ptr<Mark> mark) {
  if (captured) {
    const std::lock_guard lock(graphs_mutex());
    captured = false;
    capture.reset();
    nodes.clear();
  }
  const std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
}

std::shared_ptr<Event> find_event(cudaEvent_t handle) {
  if (auto event = events().find(handle)) return event;
  throw Error(cudaErrorInvalidResourceHandle);
}

void add_event(std::shared_ptr<Event> event) {
  events().add(std::move(event));
  ledger::count_object(LedgerObject::event, 1);
}

void remove_event(cudaEvent_t handle) {
  check(events().remove(handle) != nullptr, cudaErrorInvalidResourceHandle);
  ledger::count_object(LedgerObject::event, -1);
}

}  // namespace simcuda
