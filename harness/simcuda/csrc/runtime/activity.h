// Records of calls and of work, for an observer (simcuda_activity.h). Without one they cost a relaxed load.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "simcuda_activity.h"

namespace simcuda::activity {

extern std::atomic<bool> observed_;
inline bool observed() { return observed_.load(std::memory_order_relaxed); }

// A call of the program, as long as it lives. A call within another one is part of it.
class Call {
 public:
  explicit Call(const char* name) {
    if (observed()) begin(name);
  }
  ~Call() {
    if (name_ != nullptr) end();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  template <typename Error>
  Error returns(Error error) {
    result_ = static_cast<int>(error);
    return error;
  }

 private:
  void begin(const char* name);
  void end();
  const char* name_ = nullptr;
  std::uint64_t start_ = 0;
  int result_ = 0;
};

// What work must know of the call that asked for it; taken in the call's thread.
struct Ticket {
  std::uint32_t correlation = 0;  // 0: nobody observes it
  std::uint64_t stream = 0;
  bool in_graph = false;
};
Ticket ticket(std::uint64_t stream, bool in_graph = false);

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

// A piece of work, as long as it lives.
class Work {
 public:
  Work(int device, const char* name);
  ~Work();
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

 private:
  bool told_ = false;
  SimcudaActivity activity_{};
};

// The work that runs in this thread is a copy, or a fill.
void describe_copy(std::size_t bytes, bool from_host, bool from_pinned, bool to_host, bool to_pinned);
void describe_fill(std::size_t bytes, std::uint32_t value);

}  // namespace simcuda::activity
