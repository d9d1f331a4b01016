// Operators that the device does not have: done at once on the CPU, once the streams concerned have come to their end.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace operators {

// While a stream concerned is captured this is an error that names the operator.
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace operators
