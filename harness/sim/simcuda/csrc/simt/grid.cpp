#include "grid.h"

#include <signal.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "../runtime/access.h"
#include "block.h"

extern "C" {
#define THREAD_LOCAL __attribute__((visibility("default"), tls_model("initial-exec"))) __thread
extern THREAD_LOCAL uint3 simcudaBlockIdx;
extern THREAD_LOCAL uint3 simcudaBlockDim;
extern THREAD_LOCAL uint3 simcudaGridDim;
#undef THREAD_LOCAL
}

namespace simcuda::simt {

namespace {

// A thread of a kernel continues here, on its own stack, after a signal that would end the process.
[[noreturn]] void end_after_signal(int number) {
  if (number == SIGFPE) {
    Block::running()->end(cudaErrorLaunchFailure, "an integer was divided by zero, for which a GPU returns any value");
  }
  Block::running()->end(cudaErrorIllegalAddress, "a thread used an address that has no memory");
}

char* stack_of_thread() {
  Block* const block = Block::running();
  return block != nullptr ? block->stack_top() : nullptr;
}

// A signal handler runs on this stack, since that of a fiber may be used up.
class SignalStack {
 public:
  SignalStack() {
    stack_t before{};
    if (sigaltstack(nullptr, &before) != 0 || (before.ss_flags & SS_DISABLE) == 0) return;
    stack_t own{};
    own.ss_sp = memory_;
    own.ss_size = sizeof memory_;
    set_ = sigaltstack(&own, nullptr) == 0;
  }
  ~SignalStack() {
    if (!set_) return;
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  alignas(16) char memory_[std::size_t{64} << 10];
  bool set_ = false;
};

}  // namespace

void run_grid(const SimcudaKernel& kernel, dim3 grid, dim3 block, void** arguments, bool reversed,
              const std::function<bool()>& failed) {
  const SignalStack signals;
  const FaultExit exit(&end_after_signal, &stack_of_thread);
  Block threads(kernel, block, arguments, reversed);
  simcudaGridDim = {grid.x, grid.y, grid.z};
  simcudaBlockDim = {block.x, block.y, block.z};
  const std::uint64_t row = grid.x, plane = row * grid.y, blocks = plane * grid.z;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    if (failed()) return;
    const std::uint64_t place = reversed ? blocks - 1 - i : i;
    simcudaBlockIdx = {static_cast<unsigned>(place % row), static_cast<unsigned>(place % plane / row),
                       static_cast<unsigned>(place / plane)};
    threads.run();
  }
}

}  // namespace simcuda::simt
