// Autocast with torch's lists of CUDA operations. One boxed kernel per policy serves a whole list.
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/norm.h>
#include <torch/library.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "../core/faults.h"
#include "common.h"

namespace soft::aten {
namespace {

using c10::OperatorHandle;
using torch::jit::Stack;

c10::impl::ExcludeDispatchKeyGuard no_autocast() {
  return c10::impl::ExcludeDispatchKeyGuard(c10::DispatchKey::AutocastPrivateUse1);
}

at::Tensor cast(at::ScalarType type, const at::Tensor& tensor) {
  return at::autocast::cached_cast(type, tensor, kSoft);
}

// Replaces each tensor of an argument by the result of `visit`. Lists of optional tensors are skipped: they are
// indices.
template <typename Visit>
void map_tensors(c10::IValue& argument, const Visit& visit) {
  if (argument.isTensor()) {
    argument = visit(argument.toTensor());
  } else if (argument.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : argument.toTensorVector()) list.push_back(visit(tensor));
    argument = std::move(list);
  }
}

void cast_all(at::ScalarType type, Stack* stack, std::size_t count) {
  if (soft::strikes(Fault::autocast_ignores_dtype)) return;
  for (std::size_t place = stack->size() - count; place < stack->size(); ++place) {
    map_tensors((*stack)[place], [&](const at::Tensor& tensor) { return cast(type, tensor); });
  }
}

std::size_t arguments(const OperatorHandle& operation) { return operation.schema().arguments().size(); }

void lower_precision(const OperatorHandle& operation, Stack* stack) {
  const auto guard = no_autocast();
  cast_all(at::autocast::get_autocast_dtype(kSoft), stack, arguments(operation));
  operation.callBoxed(stack);
}

void single_precision(const OperatorHandle& operation, Stack* stack) {
  const auto guard = no_autocast();
  cast_all(at::kFloat, stack, arguments(operation));
  operation.callBoxed(stack);
}

// Sets the output's type instead of casting the input, unless the caller has set one.
void single_precision_output(const OperatorHandle& operation, Stack* stack) {
  const auto guard = no_autocast();
  const std::size_t count = arguments(operation);
  const std::optional<int> dtype = operation.schema().argumentIndexWithName("dtype");
  const c10::IValue& first = torch::jit::peek(*stack, 0, count);
  if (dtype.has_value() && first.isTensor() && at::autocast::is_eligible(first.toTensor(), kSoft) &&
      !soft::strikes(Fault::autocast_ignores_dtype)) {
    c10::IValue& wanted = torch::jit::peek(*stack, static_cast<std::size_t>(*dtype), count);
    if (wanted.isNone()) wanted = at::kFloat;
  }
  operation.callBoxed(stack);
}

// Casts all inputs to their widest type.
void promote(const OperatorHandle& operation, Stack* stack) {
  const auto guard = no_autocast();
  const std::size_t count = arguments(operation);
  at::ScalarType widest = at::autocast::get_autocast_dtype(kSoft);
  for (std::size_t place = stack->size() - count; place < stack->size(); ++place) {
    map_tensors((*stack)[place], [&](const at::Tensor& tensor) {
      if (tensor.defined()) widest = at::autocast::prioritize(widest, tensor, kSoft);
      return tensor;
    });
  }
  cast_all(widest, stack, count);
  operation.callBoxed(stack);
}

at::ScalarType norm_type(const at::Tensor& self) {
  const bool cast = at::autocast::is_eligible(self, kSoft) && !soft::strikes(Fault::autocast_ignores_dtype);
  return cast ? at::kFloat : self.scalar_type();
}

at::Tensor norm(const at::Tensor& self, const at::Scalar& p) {
  const auto guard = no_autocast();
  return at::norm(self, p, norm_type(self));
}

at::Tensor norm_dim(const at::Tensor& self, const std::optional<at::Scalar>& p, at::IntArrayRef dim, bool keepdim) {
  const auto guard = no_autocast();
  return at::norm(self, p, dim, keepdim, norm_type(self));
}

at::Tensor binary_cross_entropy_banned(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                       std::int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: their input may "
              "have been rounded to 0 or 1. Use binary_cross_entropy_with_logits or BCEWithLogitsLoss.");
}

// The name is, for example, mm or conv_transpose2d.input.
std::string full_name(const char* name) { return name; }
std::string full_name(const char* name, const char* overload) { return std::string(name) + "." + overload; }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

#define NAMES_1(name) full_name(#name)
#define NAMES_2(name, overload) full_name(#name, #overload)
#define PICK(first, second, chosen, ...) chosen
#define NAME(...) PICK(__VA_ARGS__, NAMES_2, NAMES_1, )(__VA_ARGS__)
#define LOWER(...) boxed<&lower_precision>(library, NAME(__VA_ARGS__));
#define SINGLE(...) boxed<&single_precision>(library, NAME(__VA_ARGS__));
#define SINGLE_OUTPUT(...) boxed<&single_precision_output>(library, NAME(__VA_ARGS__));
#define PROMOTE(...) boxed<&promote>(library, NAME(__VA_ARGS__));

template <void (*kernel)(const OperatorHandle&, Stack*)>
void boxed(torch::Library& library, const std::string& name) {
  library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<kernel>());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, library) {
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(SINGLE)
  AT_FORALL_FP32_SET_OPT_DTYPE(SINGLE_OUTPUT)
  AT_FORALL_PROMOTE(PROMOTE)
  PROMOTE(stack)
  PROMOTE(cat)
  library.impl("norm.Scalar", &norm);
  library.impl("norm.ScalarOpt_dim", &norm_dim);
  library.impl("binary_cross_entropy", &binary_cross_entropy_banned);
}

}  // namespace
}  // namespace soft::aten
