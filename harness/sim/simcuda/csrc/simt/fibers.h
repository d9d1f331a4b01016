// Fibers: stacks within one thread of the host, between which it switches.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace simcuda::simt {

class Stack {
 public:
  static constexpr std::size_t bytes = std::size_t{256} << 10;
  Stack();  // throws std::bad_alloc
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  char* top() const { return base_ + bytes; }

 private:
  char* base_;
};

// The process keeps the stacks of kernels that have ended.
std::unique_ptr<Stack> take_stack();
void give_back(std::vector<std::unique_ptr<Stack>>& stacks);

class Fiber {
 public:
  // The next `enter` calls the function, on this stack, which must never return.
  void prepare(const Stack& stack, void (*function)());
  // Continues the fiber, and returns when it, or one that has taken over its stack, leaves. `outer`: where the caller's
  // stack pointer is kept.
  void enter(void*& outer);
  void leave(void* outer);  // called on its stack

 private:
  void* own_ = nullptr;  // the stack pointer, while the fiber does not run
};

}  // namespace simcuda::simt
