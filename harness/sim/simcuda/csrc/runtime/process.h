// The process: whether CUDA is initialised, whether it is a fork of a process with CUDA, and its threads.
#pragma once

#include "../../../softdevice/csrc/core/queue.h"
#include "rights.h"

namespace simcuda {

bool initialized();
void initialize();  // from now on, a child of fork() cannot use CUDA
bool forked();      // true in such a child, which must not take any lock

// Between these two, the calls of this thread are the driver's, and not the program's.
void enter_driver();
void leave_driver();
// Notes that a call of the program needs a device, unless it is the driver's.
void note_use();
bool in_use();  // whether the program itself has used a device through the runtime

// The threads that serve all streams. Queued work is dropped when the process ends.
work::Pool& pool();

// A thread of the pool runs a callback of the program: calls of CUDA from it fail with cudaErrorNotPermitted, and it
// may not use device memory.
class InHostFunction {
 public:
  InHostFunction();
  ~InHostFunction();
  InHostFunction(const InHostFunction&) = delete;
  InHostFunction& operator=(const InHostFunction&) = delete;
  static bool now();

 private:
  const DeviceMemoryRight right_{false};
};

}  // namespace simcuda
