// One block of a kernel at a time: its threads are fibers of the calling thread, which take turns at barriers.
//
// A thread runs until it waits for others: at a barrier of the block, or of lanes of its warp. CUDA Programming Guide,
// "Independent Thread Scheduling": a warp function waits for the lanes in its mask, wherever they call it. Lanes that
// have ended count for nobody.
#pragma once

#include <driver_types.h>
#include <simcuda_device.h>
#include <vector_types.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "fibers.h"

namespace simcuda::simt {

// A kernel has ended before its time.
struct KernelEnded {
  cudaError_t error;
  std::string why;
};

class Block {
 public:
  // `reversed`: where several threads may run, the last one goes first.
  Block(const SimcudaKernel& kernel, dim3 size, void** arguments, bool reversed);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void run();  // throws KernelEnded

  // Of the thread that runs now, which they suspend.
  unsigned long long barrier(int predicate);
  unsigned long long exchange(SimcudaWarp kind, unsigned mask, unsigned long long value, unsigned source);
  unsigned active_mask(const void* place);
  void yield();
  [[noreturn]] void end(cudaError_t error, std::string why);
  char* stack_top() const { return current_->stack->top(); }

  static Block* running();  // in the calling thread of the host; null if none

 private:
  enum class State { fresh, ready, yielded, at_barrier, exchanging, converging, done };
  struct Thread {
    State state = State::fresh;
    uint3 index{};
    unsigned lane = 0;
    Fiber fiber;
    std::unique_ptr<Stack> stack;
    // What it waits for, and what it gets.
    SimcudaWarp kind = simcuda_warp_sync;
    unsigned mask = 0, source = 0;
    unsigned long long value = 0, result = 0;
    const void* place = nullptr;
  };
  using Warp = Thread*;

  static void main();  // of each thread
  void enter(Thread& thread);
  void suspend(State state);
  // Runs the threads of a warp until all wait for other warps. Returns whether any has run.
  bool run_warp(Warp warp, unsigned lanes);
  bool complete_exchanges(Warp warp, unsigned lanes);
  bool complete_exchange(Warp warp, unsigned lanes, unsigned mask, SimcudaWarp kind);
  bool complete_convergence(Warp warp, unsigned lanes);
  bool complete_barrier();
  std::string waiting() const;

  const SimcudaKernel& kernel_;
  void** const arguments_;
  const bool reversed_;
  std::vector<Thread> threads_;
  std::vector<std::unique_ptr<Stack>> idle_;
  Thread* current_ = nullptr;
  void* outer_ = nullptr;  // the stack pointer of `run`
  Block* const before_;
  bool ended_ = false;
  KernelEnded how_{};
};

}  // namespace simcuda::simt
