// Operators that the device lacks: they run synchronously on the CPU, after waiting for the current streams of their
// tensors.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace operators {

// If one of these streams is capturing, raises an error with the operator's name.
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace operators
