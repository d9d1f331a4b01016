// Helpers of bodies, which take their arguments from the stack and leave their results there.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <initializer_list>
#include <optional>

#include "launch.h"

namespace simcuda {

using operators::Stack;
using Arguments = c10::ArrayRef<c10::IValue>;

inline void answer(Stack* stack, std::initializer_list<c10::IValue> results) { *stack = Stack(results); }

inline at::Tensor tensor(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }
inline std::optional<at::Tensor> optional(const c10::IValue& value) {
  const at::Tensor given = tensor(value);
  return given.defined() ? std::optional(given) : std::nullopt;
}
// Converts to the type in which CUDA's kernels accumulate: float64 for float64, otherwise float32.
inline at::Tensor wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}
inline double number(const c10::IValue& value, double otherwise) {
  return value.isNone() ? otherwise : value.toDouble();
}

// Lets a body use autograd on the CPU. Autograd's keys are excluded otherwise in a stream's thread.
class Taping {
 public:
  Taping()
      : keys_(c10::impl::tls_local_dispatch_key_set().included_,
              c10::impl::tls_local_dispatch_key_set().excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView),
        grad_(true) {}

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::AutoGradMode grad_;
};

}  // namespace simcuda
