// Normalisations that only CUDA has: cuDNN's batch norm, the parts of synchronised batch norm, and fused RMS norm.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/where.h>

#include <string>
#include <vector>

#include "bodies.h"
#include "own.h"
#include "rules.h"

namespace simcuda {
namespace {

// Arguments: input, weight, bias, running mean and variance, training, momentum, epsilon.
void cudnn_norm(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor input = tensor(a[0]);
  const auto [output, mean, deviation] =
      at::native_batch_norm(input, optional(a[1]), optional(a[2]), optional(a[3]), optional(a[4]), a[5].toBool(),
                            a[6].toDouble(), a[7].toDouble());
  const at::Tensor none = tensor(a[1]).new_empty({0});
  answer(stack, {output, a[5].toBool() ? mean : none, a[5].toBool() ? deviation : none,
                 at::empty({0}, input.options().dtype(at::kByte))});
}

// The same, with the four outputs as further arguments.
void cudnn_out(const c10::OperatorHandle& op, Stack* stack) {
  const Stack a = *stack;
  Stack inner(a.begin(), a.begin() + 8);
  cudnn_norm(op, &inner);
  for (std::size_t i = 0; i < 4; ++i) {
    operators::rules::given(tensor(a[8 + i]), tensor(inner[i]).sizes()).copy_(tensor(inner[i]));
  }
  answer(stack, {a[8], a[9], a[10], a[11]});
}

// Arguments: input, the result's gradient, weight, running mean and variance, saved mean and deviation, epsilon,
// reserve.
void cudnn_norm_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const auto [input, weight, bias] = at::native_batch_norm_backward(
      tensor(a[1]), tensor(a[0]), optional(a[2]), optional(a[3]), optional(a[4]), optional(a[5]), optional(a[6]),
      /*train=*/true, a[7].toDouble(), {true, true, true});
  answer(stack, {input, weight, bias});
}

std::vector<std::int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<std::int64_t> dims;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim) {
    if (dim != 1) {
      dims.push_back(dim);
    }
  }
  return dims;
}

// Returns one value per channel, shaped to broadcast with the input.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[1] = values.numel();
  return values.view(sizes);
}

// Arguments: input, epsilon.
void statistics(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor input = wide(tensor(a[0]));
  const std::vector<std::int64_t> dims = all_but_channels(input);
  const at::Tensor mean = input.mean(dims);
  const at::Tensor variance = (input - by_channel(mean, input)).square().mean(dims);
  answer(stack, {mean, (variance + a[1].toDouble()).rsqrt()});
}

// Arguments: input, weight, bias, mean, inverse deviation, epsilon.
at::Tensor normalised(Arguments a) {
  const at::Tensor input = tensor(a[0]);
  at::Tensor result = (wide(input) - by_channel(tensor(a[3]), input)) * by_channel(tensor(a[4]), input);
  if (tensor(a[1]).defined()) {
    result = result * by_channel(tensor(a[1]), input);
  }
  if (tensor(a[2]).defined()) {
    result = result + by_channel(tensor(a[2]), input);
  }
  return result.to(input.scalar_type());
}
void apply(const c10::OperatorHandle& /*op*/, Stack* stack) { answer(stack, {normalised(*stack)}); }
void apply_out(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor result = normalised(a);
  operators::rules::given(tensor(a[6]), result.sizes()).copy_(result);
  answer(stack, {a[6]});
}

// Arguments: input, means and inverse deviations per process, running mean and variance, momentum, epsilon, and the
// number of values per process.
void gather(Stack* stack, const at::Tensor& counts) {
  const Stack a = *stack;
  const at::Tensor means = wide(tensor(a[1])), epsilon = at::empty({}, means.options()).fill_(a[6].toDouble());
  const at::Tensor weights = counts.to(means.scalar_type()).view({-1, 1});
  const at::Tensor total = weights.sum();
  const at::Tensor mean = (means * weights).sum(0) / total;
  const at::Tensor variances = wide(tensor(a[2])).pow(-2) - epsilon;
  const at::Tensor variance = ((variances + (means - mean).square()) * weights).sum(0) / total;
  const double momentum = a[5].toDouble();
  if (tensor(a[3]).defined()) {
    tensor(a[3]).mul_(1 - momentum).add_(mean.to(tensor(a[3]).scalar_type()), momentum);
  }
  if (tensor(a[4]).defined()) {
    const at::Tensor unbiased = variance * (total / (total - 1));
    tensor(a[4]).mul_(1 - momentum).add_(unbiased.to(tensor(a[4]).scalar_type()), momentum);
  }
  answer(stack, {mean, (variance + epsilon).rsqrt()});
}
void gather_counts(const c10::OperatorHandle& /*op*/, Stack* stack) { gather(stack, tensor(stack->at(7))); }
void gather_equal(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const at::Tensor means = tensor(stack->at(1));
  gather(stack, at::empty({means.size(0)}, means.options()).fill_(static_cast<double>(stack->at(7).toInt())));
}

// Arguments: the result's gradient, input, mean, inverse deviation, weight, and which results to compute.
void reduce_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor grad = wide(tensor(a[0])), input = wide(tensor(a[1])), weight = tensor(a[4]);
  const std::vector<std::int64_t> dims = all_but_channels(input);
  const at::Tensor sum = grad.sum(dims);
  const at::Tensor product = (grad * (input - by_channel(tensor(a[2]), input))).sum(dims);
  const at::ScalarType dtype = weight.defined() ? weight.scalar_type() : sum.scalar_type();
  answer(stack, {a[5].toBool() ? sum : at::Tensor(), a[5].toBool() ? product : at::Tensor(),
                 a[6].toBool() ? (product * tensor(a[3])).to(dtype) : at::Tensor(),
                 a[7].toBool() ? sum.to(dtype) : at::Tensor()});
}

// Arguments: the result's gradient, input, mean, inverse deviation, weight, both sums, counts.
void apply_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor input = tensor(a[1]);
  const at::Tensor total = tensor(a[7]).sum().to(tensor(a[5]).scalar_type());
  const at::Tensor inverse = tensor(a[3]);
  const at::Tensor mean_grad = by_channel(tensor(a[5]) / total, input);
  const at::Tensor slope = by_channel(tensor(a[6]) / total * inverse.square(), input);
  at::Tensor result = (wide(tensor(a[0])) - mean_grad - (wide(input) - by_channel(tensor(a[2]), input)) * slope) *
                      by_channel(inverse, input);
  if (tensor(a[4]).defined()) {
    result = result * by_channel(tensor(a[4]), input);
  }
  answer(stack, {result.to(input.scalar_type())});
}

// Arguments: the result's gradient, input, normalised sizes, inverse root, weight, and which results to compute.
void rms_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor input = tensor(a[1]), weight = tensor(a[4]);
  const auto inner = static_cast<std::int64_t>(a[2].toIntVector().size());
  std::vector<std::int64_t> outer_dims, inner_dims;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim) {
    (dim < input.dim() - inner ? outer_dims : inner_dims).push_back(dim);
  }
  const at::Tensor grad = wide(tensor(a[0])), inverse = wide(tensor(a[3])), unit = wide(input) * inverse;
  const at::Tensor weighted = weight.defined() ? grad * wide(weight) : grad;
  const at::Tensor result = (weighted - unit * (weighted * unit).mean(inner_dims, true)) * inverse;
  const c10::List<bool> wanted = a[5].toBoolList();
  const at::Tensor of_weight = outer_dims.empty() ? grad * unit : (grad * unit).sum(outer_dims);
  answer(stack, {wanted.get(0) ? result.to(input.scalar_type()) : at::Tensor(),
                 wanted.get(1) && weight.defined() ? of_weight.to(weight.scalar_type()) : at::Tensor()});
}

}  // namespace

void add_normalisations(Registrar& registrar) {
  registrar.body("cudnn_batch_norm", cudnn_norm);
  registrar.body("cudnn_batch_norm.out", cudnn_out);
  registrar.body("cudnn_batch_norm_backward", cudnn_norm_backward);
  registrar.body("batch_norm_stats", statistics);
  registrar.body("batch_norm_elemt", apply);
  registrar.body("batch_norm_elemt.out", apply_out);
  registrar.body("batch_norm_gather_stats", gather_equal);
  registrar.body("batch_norm_gather_stats_with_counts", gather_counts);
  registrar.body("batch_norm_backward_reduce", reduce_backward);
  registrar.body("batch_norm_backward_elemt", apply_backward);
  registrar.body("_fused_rms_norm_backward", rms_backward);
}

}  // namespace simcuda
