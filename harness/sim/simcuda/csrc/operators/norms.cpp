#include "norms.h"

#include <ATen/AccumulateType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <string>
#include <utility>

#include "bodies.h"
#include "rehearsal.h"

namespace simcuda {
namespace {

// Arguments: input, weight, bias, running mean and variance, training, momentum, epsilon.
void batch_norm(const c10::OperatorHandle& op, Stack* stack) {
  const Stack given = *stack;
  for (c10::IValue& value : *stack) {
    if (tensor(value).defined() && at::isReducedFloatingType(tensor(value).scalar_type())) {
      value = tensor(value).to(at::kFloat);
    }
  }
  const Stack called = *stack;
  operators::call_on_host(op, stack);
  for (const std::size_t running : {3, 4}) {
    if (tensor(given[running]).defined() && !tensor(given[running]).is_same(tensor(called[running]))) {
      tensor(given[running]).copy_(tensor(called[running]));
    }
  }
  if (!given[5].toBool()) {
    (*stack)[1] = tensor(called[3]);
    (*stack)[2] = (tensor(called[4]) + given[7].toDouble()).rsqrt();
  }
}

// Returns the CPU's shape function with statistics in CUDA's accumulation type. With `channels`, there is always one
// statistic per channel.
operators::Shape with_wide_statistics(operators::Shape shape, bool channels) {
  return [shape = std::move(shape), channels](const c10::OperatorHandle& op, Stack* stack) {
    const at::Tensor input = tensor((*stack)[stack->size() - op.schema().arguments().size()]);
    shape(op, stack);
    const at::ScalarType dtype = at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true);
    for (std::size_t i = stack->size() - 2; i < stack->size(); ++i) {
      const at::Tensor statistic = tensor((*stack)[i]);
      (*stack)[i] =
          at::empty(channels ? at::IntArrayRef({input.size(1)}) : statistic.sizes(), statistic.options().dtype(dtype));
    }
  };
}

}  // namespace

void amend_norm(const std::string& name, operators::Recipe& recipe) {
  const bool running = name == "native_batch_norm" || name == "_native_batch_norm_legit";
  if (running) {
    recipe.body = batch_norm;
    recipe.check = rehearsal(name, /*in_float=*/true);
  }
  if (running || name == "_native_batch_norm_legit.no_stats" || name == "native_layer_norm") {
    recipe.shape = with_wide_statistics(std::move(recipe.shape), name != "native_layer_norm");
  }
}

}  // namespace simcuda
