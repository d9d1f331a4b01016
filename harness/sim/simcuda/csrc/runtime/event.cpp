#include "event.h"

#include <utility>

#include "error.h"
#include "graph.h"
#include "handles.h"

namespace simcuda {

namespace {

Handles<Event>& handles() {
  static auto* const handles = new Handles<Event>;
  return *handles;
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
  if (auto event = handles().find(handle)) return event;
  throw Error(cudaErrorInvalidResourceHandle);
}

void add_event(std::shared_ptr<Event> event) { handles().add(std::move(event)); }

void remove_event(cudaEvent_t handle) { check(handles().remove(handle) != nullptr, cudaErrorInvalidResourceHandle); }

}  // namespace simcuda
