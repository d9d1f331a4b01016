// What is different on CUDA in batch norm and layer norm: both compute in float32 where the input has 16 bits, round once,
// and leave their statistics in float32; and batch norm has statistics where it evaluates, too.
#include <ATen/AccumulateType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bodies.h"
#include "own.h"
#include "rehearsal.h"

namespace simcuda {
namespace {

// The CPU's kernel, on float32 in place of types of 16 bits. Gives the arguments that it was called with.
std::vector<c10::IValue> call_in_float(const c10::OperatorHandle& op, Stack* stack) {
  for (c10::IValue& value : *stack) {
    if (tensor(value).defined() && at::isReducedFloatingType(tensor(value).scalar_type())) {
      value = tensor(value).to(at::kFloat);
    }
  }
  std::vector<c10::IValue> called(stack->begin(), stack->end());
  operators::call_on_host(op, stack);
  return called;
}

// Arguments: input, weight, bias, running mean and variance, training, momentum, epsilon.
void batch_norm(const c10::OperatorHandle& op, Stack* stack) {
  const Stack given = *stack;
  const std::vector<c10::IValue> called = call_in_float(op, stack);
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

void rounded_once(const c10::OperatorHandle& op, Stack* stack) { call_in_float(op, stack); }

// The shapes of the CPU, with statistics in the type in which CUDA adds up. `channels`: of each channel, always.
operators::Shape with_wide_statistics(operators::Shape shape, bool channels) {
  return [shape = std::move(shape), channels](const c10::OperatorHandle& op, Stack* stack) {
    const at::Tensor input = tensor((*stack)[stack->size() - op.schema().arguments().size()]);
    shape(op, stack);
    const at::ScalarType dtype = at::toAccumulateType(input.scalar_type(), /*is_cuda=*/true);
    for (std::size_t i = stack->size() - 2; i < stack->size(); ++i) {
      const at::Tensor statistic = tensor((*stack)[i]);
      (*stack)[i] = at::empty(channels ? at::IntArrayRef({input.size(1)}) : statistic.sizes(),
                              statistic.options().dtype(dtype));
    }
  };
}

}  // namespace

void amend_norm(const std::string& name, operators::Recipe& recipe) {
  static const std::map<std::string, operators::Body> bodies = {
      {"native_batch_norm", batch_norm},
      {"_native_batch_norm_legit", batch_norm},
      {"_native_batch_norm_legit.no_stats", rounded_once},
      {"native_layer_norm", rounded_once},
      {"native_batch_norm_backward", rounded_once},
      {"native_layer_norm_backward", rounded_once},
  };
  const auto found = bodies.find(name);
  if (found == bodies.end()) {
    return;
  }
  recipe.body = found->second;
  recipe.check = rehearsal(name, /*in_float=*/true);
  if (name.find("backward") == std::string::npos) {
    recipe.shape = with_wide_statistics(std::move(recipe.shape), name != "native_layer_norm");
  }
}

}  // namespace simcuda
