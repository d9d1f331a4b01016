// Operators on the CPU's tensors: what both the launched operators and the fallback come to.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace operators {

using torch::jit::Stack;

// Calls the CPU's kernel. Its arguments are kept until its results are on the stack: torch before 2.13 drops the
// arguments first, and several results of a kernel that writes to its arguments only refer to them.
inline void call_on_host(const c10::OperatorHandle& op, Stack* stack) {
  const Stack kept = op.schema().returns().size() > 1 ? *stack : Stack();
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

}  // namespace operators
