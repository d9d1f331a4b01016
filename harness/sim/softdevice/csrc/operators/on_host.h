// Calls operators on CPU tensors, for both the launched operators and the fallback.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <optional>
#include <utility>

namespace operators {

using torch::jit::Stack;

// Replaces lists of optional tensors that have no such type, as TorchScript makes them for `x[i]`: their elements have
// a type with what the compiler knows about the tensors, which IValue's checks do not accept.
inline void unify_lists(Stack* stack, std::size_t arguments) {
  for (auto value = stack->end() - static_cast<std::ptrdiff_t>(arguments); value != stack->end(); ++value) {
    if (!value->isList() || value->isTensorList() || value->isOptionalTensorList()) {
      continue;
    }
    const c10::TypePtr type = value->toList().elementType();
    const auto* optional = type->castRaw<c10::OptionalType>();
    if (optional == nullptr || optional->getElementType()->kind() != c10::TypeKind::TensorType) {
      continue;
    }
    c10::List<std::optional<at::Tensor>> unified;
    for (const c10::IValue& element : value->toListRef()) {
      unified.push_back(element.toOptional<at::Tensor>());
    }
    *value = std::move(unified);
  }
}

// Calls the CPU's kernel. Keeps the arguments until the results are on the stack: before 2.13, torch drops the
// arguments first, while a kernel that writes to its arguments and has several results returns references to them.
inline void call_on_host(const c10::OperatorHandle& op, Stack* stack) {
  const Stack kept = op.schema().returns().size() > 1 ? *stack : Stack();
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

}  // namespace operators
