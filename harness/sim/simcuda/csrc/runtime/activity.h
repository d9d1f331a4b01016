// Records of calls and of work, for an observer (simcuda_activity.h). Without an observer they cost a relaxed load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "simcuda_activity.h"

namespace simcuda::activity {

extern std::atomic<int> wanted_;
inline bool observed() { return (wanted_.load(std::memory_order_relaxed) & simcuda_observe_calls) != 0; }

void begin(SimcudaCall& call, const char* name, bool driver);
void end(SimcudaCall& call);

// A call of the program, while the object lives. A nested call is part of the outer one.
class Call {
 public:
  explicit Call(const char* name) {
    if (observed()) begin(call_, name, false);
  }
  ~Call() {
    if (call_.name != nullptr) end(call_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  template <typename Error>
  Error returns(Error error) {
    call_.result = static_cast<int>(error);
    return error;
  }

 private:
  SimcudaCall call_;
};

// The data that work needs about the call that queued it; created in the call's thread.
struct Ticket {
  std::uint32_t correlation = 0;  // 0: nobody observes the call
  std::uint64_t stream = 0;
  std::uint32_t graph = 0;  // the number of the graph that is launched, or 0
};
Ticket ticket(std::uint64_t stream, std::uint32_t graph = 0);

// In a thread of the pool: work that begins from now on belongs to the ticket.
class Scope {
 public:
  explicit Scope(const Ticket& ticket);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const Ticket before_;
};

// A piece of work, while the object lives. `node` is the number of its node, if a graph runs.
class Work {
 public:
  Work(int device, const char* name, std::uint64_t node);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

 private:
  bool observed_ = false;
  SimcudaActivity activity_{};
};

// Describe the work that runs in this thread as a copy or a fill.
void describe_copy(std::size_t bytes, SimcudaPlace from, SimcudaPlace to, bool asynchronous);
void describe_fill(std::size_t bytes, std::uint32_t value, SimcudaPlace to, bool asynchronous);

// An event's identity in reports, which contains the number of its last record.
struct EventRecord {
  int device = 0;
  std::uint32_t event = 0;
  std::uint64_t record = 0;
};

// Describes what this thread's call waits for, or queues a wait for.
void describe_wait(SimcudaWait wait, int device, std::uint64_t stream, const EventRecord& event = {});

void report_event_record(const EventRecord& event, const Ticket& ticket);   // in the call
void report_event_reached(const EventRecord& event, const Ticket& ticket);  // when the stream has reached the event
void report_context(int device);

std::uint32_t next_event();
std::uint64_t next_record();
std::uint32_t next_graph();

}  // namespace simcuda::activity
