// The process as a whole: whether CUDA was initialised in it, whether it is a fork of one where it was, its threads.
#pragma once

#include "../../../softdevice/csrc/core/queue.h"

namespace simcuda {

bool initialized();
void initialize();  // from now on a child of fork() is without CUDA
bool forked();      // true in such a child. No lock may be taken there.

// The threads that serve all streams. Work is dropped when the process ends.
work::Pool& pool();

// A callback of the program runs in a thread of the pool: calls of CUDA from it fail with cudaErrorNotPermitted.
class InHostFunction {
 public:
  InHostFunction();
  ~InHostFunction();
  InHostFunction(const InHostFunction&) = delete;
  InHostFunction& operator=(const InHostFunction&) = delete;
  static bool now();
};

}  // namespace simcuda
