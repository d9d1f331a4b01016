// Records of calls and of work, for an observer (simcuda_activity.h). Without one they cost a relaxed load.
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

// A call of the program, as long as it lives. A call within another one is part of it.
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

// What work must know of the call that asked for it; taken in the call's thread.
struct Ticket {
  std::uint32_t correlation = 0;  // 0: nobody observes it
  std::uint64_t stream = 0;
  std::uint32_t graph = 0;  // the number of the graph that is launched; 0 if none is
};
Ticket ticket(std::uint64_t stream, std::uint32_t graph = 0);

// In a thread that works: the work that begins from now on is that of the ticket.
class Scope {
 public:
  explicit Scope(const Ticket& ticket);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const Ticket before_;
};

// A piece of work, as long as it lives. `node` is the number of the node that it is of, if a graph runs.
class Work {
 public:
  Work(int device, const char* name, std::uint64_t node);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

 private:
  bool told_ = false;
  SimcudaActivity activity_{};
};

// The work that runs in this thread is a copy, or a fill.
void describe_copy(std::size_t bytes, SimcudaPlace from, SimcudaPlace to, bool asynchronous);
void describe_fill(std::size_t bytes, std::uint32_t value, SimcudaPlace to, bool asynchronous);

// What an event is known by; it is told under the numbers of its last record.
struct EventRecord {
  int device = 0;
  std::uint32_t event = 0;
  std::uint64_t record = 0;
};

// The call that this thread is in waits for it, or asks for it.
void describe_wait(SimcudaWait wait, int device, std::uint64_t stream, const EventRecord& event = {});

void tell_event_record(const EventRecord& event, const Ticket& ticket);   // in the call
void tell_event_reached(const EventRecord& event, const Ticket& ticket);  // when the stream has come to it
void tell_context(int device);

std::uint32_t next_event();
std::uint64_t next_record();
std::uint32_t next_graph();

}  // namespace simcuda::activity
