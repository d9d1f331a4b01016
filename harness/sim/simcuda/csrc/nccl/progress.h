// The one thread of a process that looks whether other ranks have come. It sleeps until one of them rings.
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace simcuda::nccl {

// Work whose stream goes on when other ranks have come.
class Waiting {
 public:
  Waiting() = default;
  virtual ~Waiting() = default;
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // Asked by the thread each time that a rank has rung, until it is true.
  virtual bool arrived() = 0;
  // Called once, by the thread, which then forgets the work.
  virtual void go_on() = 0;
};

void start_watching();  // once, at a known time and not at the first collective that has to wait

void watch(std::shared_ptr<Waiting> waiting);
void look_again();  // something has changed in this process

// Starts a thread that takes no signal of the program.
std::thread quiet_thread(std::function<void()> body);

}  // namespace simcuda::nccl
