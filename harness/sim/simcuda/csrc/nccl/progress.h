// The thread of each process that checks whether other ranks have arrived. It sleeps until one of them rings.
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace simcuda::nccl {

// Work whose stream continues when other ranks have arrived.
class Waiting {
 public:
  Waiting() = default;
  virtual ~Waiting() = default;
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // The thread calls it each time a rank rings, until it returns true.
  virtual bool arrived() = 0;
  // The thread calls it once, and then drops the work.
  virtual void go_on() = 0;
};

void start_watching();  // once, at a known time instead of at the first collective that has to wait

void watch(std::shared_ptr<Waiting> waiting);
void look_again();  // call it after a change in this process

// Starts a thread that blocks all signals.
std::thread quiet_thread(std::function<void()> body);

}  // namespace simcuda::nccl
