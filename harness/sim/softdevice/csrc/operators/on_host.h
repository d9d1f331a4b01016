// Calls operators on CPU tensors, for both the launched operators and the fallback.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace operators {

using torch::jit::Stack;

// Calls the CPU's kernel. Keeps the arguments until the results are on the stack: before 2.13, torch drops the
// arguments first, while a kernel that writes to its arguments and has several results returns references to them.
inline void call_on_host(const c10::OperatorHandle& op, Stack* stack) {
  const Stack kept = op.schema().returns().size() > 1 ? *stack : Stack();
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

}  // namespace operators
