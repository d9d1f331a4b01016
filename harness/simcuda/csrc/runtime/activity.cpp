#include "activity.h"

#include <pthread.h>

namespace simcuda::activity {

std::atomic<bool> observed_{false};

namespace {

// They stay when nobody observes any longer: a piece of work may be just about to tell.
std::atomic<void (*)(const SimcudaActivity*)> observer{nullptr};
std::atomic<std::uint64_t (*)()> clock_{nullptr};

std::atomic<std::uint32_t> correlations{0};
thread_local std::uint32_t calling = 0;  // the call that this thread is in
thread_local Ticket working;
thread_local SimcudaActivity* current = nullptr;

std::uint64_t now() { return clock_.load(std::memory_order_acquire)(); }
void tell(const SimcudaActivity& activity) { observer.load(std::memory_order_acquire)(&activity); }

}  // namespace

void Call::begin(const char* name) {
  if (calling != 0) return;
  name_ = name;
  calling = ++correlations;
  start_ = now();
}

void Call::end() {
  SimcudaActivity activity{};
  activity.kind = SimcudaActivityKind::call;
  activity.name = name_;
  activity.start = start_;
  activity.end = now();
  activity.correlation = calling;
  activity.thread = static_cast<std::uint32_t>(pthread_self());
  activity.result = result_;
  calling = 0;
  if (observed()) tell(activity);
}

Ticket ticket(std::uint64_t stream, bool in_graph) { return observed() ? Ticket{calling, stream, in_graph} : Ticket{}; }

Scope::Scope(const Ticket& ticket) : before_(working) { working = ticket; }
Scope::~Scope() { working = before_; }

Work::Work(int device, const char* name) {
  if (working.correlation == 0 || !observed()) return;
  told_ = true;
  activity_.kind = SimcudaActivityKind::kernel;
  activity_.name = name;
  activity_.correlation = working.correlation;
  activity_.device = device;
  activity_.stream = working.stream;
  activity_.in_graph = working.in_graph;
  activity_.start = now();
  current = &activity_;
}

Work::~Work() {
  if (!told_) return;
  current = nullptr;
  activity_.end = now();
  if (observed()) tell(activity_);
}

void describe_copy(std::size_t bytes, bool from_host, bool from_pinned, bool to_host, bool to_pinned) {
  if (current == nullptr) return;
  current->kind = SimcudaActivityKind::copy;
  current->bytes = bytes;
  current->from_host = from_host;
  current->from_pinned = from_pinned;
  current->to_host = to_host;
  current->to_pinned = to_pinned;
}

void describe_fill(std::size_t bytes, std::uint32_t value) {
  if (current == nullptr) return;
  current->kind = SimcudaActivityKind::fill;
  current->bytes = bytes;
  current->value = value;
}

}  // namespace simcuda::activity

extern "C" __attribute__((visibility("default"))) void simcudaObserve(
    void (*observer)(const SimcudaActivity* activity), std::uint64_t (*clock)()) {
  using namespace simcuda::activity;
  if (observer != nullptr) {
    ::simcuda::activity::observer.store(observer, std::memory_order_release);
    clock_.store(clock, std::memory_order_release);
  }
  observed_.store(observer != nullptr, std::memory_order_release);
}
