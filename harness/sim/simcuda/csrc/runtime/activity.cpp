#include "activity.h"

#include <pthread.h>

namespace simcuda::activity {

std::atomic<int> wanted_{0};

namespace {

// They remain set after the observation ends, since work may be just about to report.
std::atomic<void (*)(const SimcudaActivity*)> observer{nullptr};
std::atomic<std::uint64_t (*)()> clock_{nullptr};

std::atomic<std::uint32_t> correlations{0};
thread_local std::uint32_t calling = 0;  // the call that this thread is in
thread_local SimcudaActivity waiting;    // what the call waits for, unless that is `none`
thread_local Ticket working;
thread_local SimcudaActivity* current = nullptr;

std::uint64_t now() { return clock_.load(std::memory_order_acquire)(); }
void report(const SimcudaActivity& activity) { observer.load(std::memory_order_acquire)(&activity); }

SimcudaActivity activity_of(SimcudaCall& call, SimcudaActivityKind kind) {
  SimcudaActivity activity{};
  activity.kind = kind;
  activity.name = call.name;
  activity.start = call.start;
  activity.correlation = calling;
  activity.driver = call.driver;
  activity.thread = static_cast<std::uint32_t>(pthread_self());
  activity.result = call.result;
  activity.data = &call.data;
  return activity;
}

void report_event(SimcudaActivityKind kind, const EventRecord& event, const Ticket& ticket) {
  if (ticket.correlation == 0 || !observed()) return;
  SimcudaActivity activity{};
  activity.kind = kind;
  activity.name = "event record";
  activity.start = activity.end = now();
  activity.correlation = ticket.correlation;
  activity.device = event.device;
  activity.stream = ticket.stream;
  activity.event = event.event;
  activity.record = event.record;
  report(activity);
}

}  // namespace

void begin(SimcudaCall& call, const char* name, bool driver) {
  if (calling != 0) return;
  call.name = name;
  call.driver = driver;
  calling = ++correlations;
  waiting.wait = SimcudaWait::none;
  report(activity_of(call, SimcudaActivityKind::call_begins));
  call.start = now();
}

void end(SimcudaCall& call) {
  SimcudaActivity activity = activity_of(call, SimcudaActivityKind::call);
  activity.end = now();
  SimcudaActivity waited = waiting;
  // The observer may call functions of CUDA, which are still part of this call.
  if (observed()) report(activity);
  if (observed() && waited.wait != SimcudaWait::none) {
    activity.kind = SimcudaActivityKind::wait;
    activity.device = waited.device;
    activity.stream = waited.stream;
    activity.wait = waited.wait;
    activity.event = waited.event;
    activity.record = waited.record;
    report(activity);
  }
  calling = 0;
}

Ticket ticket(std::uint64_t stream, std::uint32_t graph) {
  return observed() ? Ticket{calling, stream, graph} : Ticket{};
}

Scope::Scope(const Ticket& ticket) : before_(working) { working = ticket; }
Scope::~Scope() { working = before_; }

Work::Work(int device, const char* name, std::uint64_t node) {
  if (working.correlation == 0 || !observed()) return;
  observed_ = true;
  activity_.kind = SimcudaActivityKind::kernel;
  activity_.name = name;
  activity_.correlation = working.correlation;
  activity_.device = device;
  activity_.stream = working.stream;
  activity_.graph = working.graph;
  activity_.node = node;
  activity_.start = now();
  current = &activity_;
}

Work::~Work() {
  if (!observed_) return;
  current = nullptr;
  activity_.end = now();
  if (observed()) report(activity_);
}

void describe_copy(std::size_t bytes, SimcudaPlace from, SimcudaPlace to, bool asynchronous) {
  if (current == nullptr) return;
  current->kind = SimcudaActivityKind::copy;
  current->bytes = bytes;
  current->from = from;
  current->to = to;
  current->asynchronous = asynchronous;
}

void describe_fill(std::size_t bytes, std::uint32_t value, SimcudaPlace to, bool asynchronous) {
  if (current == nullptr) return;
  current->kind = SimcudaActivityKind::fill;
  current->bytes = bytes;
  current->value = value;
  current->to = to;
  current->asynchronous = asynchronous;
}

void describe_wait(SimcudaWait wait, int device, std::uint64_t stream, const EventRecord& event) {
  if (calling == 0) return;
  waiting.wait = wait;
  waiting.device = device;
  waiting.stream = stream;
  waiting.event = event.event;
  waiting.record = event.record;
}

void report_event_record(const EventRecord& event, const Ticket& ticket) {
  report_event(SimcudaActivityKind::event_record, event, ticket);
}

void report_event_reached(const EventRecord& event, const Ticket& ticket) {
  report_event(SimcudaActivityKind::event_reached, event, ticket);
}

void report_context(int device) {
  if ((wanted_.load(std::memory_order_relaxed) & simcuda_observe_contexts) == 0) return;
  SimcudaActivity activity{};
  activity.kind = SimcudaActivityKind::context;
  activity.device = device;
  report(activity);
}

std::uint32_t next_event() {
  static std::atomic<std::uint32_t> events{0};
  return ++events;
}

std::uint64_t next_record() {
  static std::atomic<std::uint64_t> records{0};
  return ++records;
}

std::uint32_t next_graph() {
  static std::atomic<std::uint32_t> graphs{0};
  return ++graphs;
}

}  // namespace simcuda::activity

extern "C" {

__attribute__((visibility("default"))) void simcudaObserve(void (*observer)(const SimcudaActivity* activity),
                                                           std::uint64_t (*clock)(), int wanted) {
  using namespace simcuda::activity;
  if (wanted != 0) {
    ::simcuda::activity::observer.store(observer, std::memory_order_release);
    clock_.store(clock, std::memory_order_release);
  }
  wanted_.store(wanted, std::memory_order_release);
}
}
