// Addresses of a device without memory: work that accesses them makes the device fail, as on CUDA.
#pragma once

#include <cstddef>

namespace simcuda {

class Device;

// If work accesses an inaccessible page of the range, its device fails with cudaErrorIllegalAddress. If a thread that
// torch's operators have started accesses it, the `owner` of the range fails. Any other access ends the process, as it
// does without this. Call `unwatch_accesses` before the range is unmapped.
void watch_accesses(char* base, std::size_t size, Device& owner);
void unwatch_accesses(char* base);
// Sets the owner of a watched range.
void own_accesses(char* base, Device& owner);
// Marks the calling thread as one of the program's.
void note_host_thread() noexcept;

// While it exists, a signal of the calling thread that would end the process (an access that nothing above serves, a
// division by zero) makes the thread call `function` with the signal's number, on the stack that `stack` returns.
// `function` must not return. Without a stack, the process ends.
class FaultExit {
 public:
  FaultExit(void (*function)(int), char* (*stack)());
  ~FaultExit();
  FaultExit(const FaultExit&) = delete;
  FaultExit& operator=(const FaultExit&) = delete;

 private:
  friend bool leave_by_exit(int signal, void* context);
  void (*const function_)(int);
  char* (*const stack_)();
  FaultExit* const before_;
};

// While it exists, the calling thread runs work of the device.
class WorkScope {
 public:
  explicit WorkScope(Device& device);
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  Device* const before_;
};

}  // namespace simcuda
