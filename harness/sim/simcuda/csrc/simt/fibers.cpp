#include "fibers.h"

#include <sys/mman.h>

#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

// Saves the registers that a function must preserve, and the stack pointer in `*from`. Continues where the stack `to`
// was saved. System V ABI, AMD64 supplement, "Registers".
extern "C" void simcuda_switch_stack(void** from, void* to);

asm(R"(
.text
.p2align 4
.hidden simcuda_switch_stack
.globl simcuda_switch_stack
.type simcuda_switch_stack, @function
simcuda_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simcuda_switch_stack, .-simcuda_switch_stack
)");

namespace simcuda::simt {

namespace {

constexpr std::size_t guard = 4096, most_kept = 2048;

struct Kept {
  std::mutex mutex;
  std::vector<std::unique_ptr<Stack>> stacks;
};

Kept& kept() {
  static auto* const kept = new Kept;
  return *kept;
}

}  // namespace

Stack::Stack() {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(memory);
  mprotect(base_, guard, PROT_NONE);
}

Stack::~Stack() { munmap(base_, bytes); }

std::unique_ptr<Stack> take_stack() {
  Kept& all = kept();
  {
    const std::lock_guard lock(all.mutex);
    if (!all.stacks.empty()) {
      auto stack = std::move(all.stacks.back());
      all.stacks.pop_back();
      return stack;
    }
  }
  return std::make_unique<Stack>();
}

void give_back(std::vector<std::unique_ptr<Stack>>& stacks) {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  for (auto& stack : stacks) {
    if (all.stacks.size() < most_kept) all.stacks.push_back(std::move(stack));
  }
  stacks.clear();
}

void Fiber::prepare(const Stack& stack, void (*function)()) {
  auto* place = reinterpret_cast<void**>(stack.top());
  *--place = nullptr;  // where a call would have put the address to return to
  *--place = reinterpret_cast<void*>(function);
  for (int i = 0; i < 6; ++i) *--place = nullptr;
  own_ = place;
}

void Fiber::enter(void*& outer) { simcuda_switch_stack(&outer, own_); }
void Fiber::leave(void* outer) { simcuda_switch_stack(&own_, outer); }

}  // namespace simcuda::simt
