// Convolutions: above the choice of a library for them, and those of cuDNN that programs call by name.
#include <ATen/TensorOperators.h>
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/affine_grid_generator_backward.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/grid_sampler_2d_backward.h>

#include <string>
#include <utility>
#include <vector>

#include "bodies.h"
#include "own.h"
#include "rules.h"

namespace simcuda {
namespace {

at::Tensor convolved(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups) {
  const std::vector<std::int64_t> none(stride.size(), 0);
  return at::convolution(input, weight, bias, stride, padding, dilation, false, none, groups);
}

// Arguments: input, weight, kernel's size, bias, stride, padding, dilation, and the output if it is given.
at::Tensor depthwise(Arguments a) {
  return convolved(tensor(a[0]), tensor(a[1]), optional(a[3]), a[4].toIntVector(), a[5].toIntVector(),
                   a[6].toIntVector(), tensor(a[0]).size(1));
}

// Arguments: input, weight, padding, stride, dilation, groups, three choices, and the output if it is given.
at::Tensor cudnn(Arguments a) {
  return convolved(tensor(a[0]), tensor(a[1]), std::nullopt, a[3].toIntVector(), a[2].toIntVector(),
                   a[4].toIntVector(), a[5].toInt());
}

at::Tensor cudnn_transposed(Arguments a) {
  return at::convolution(tensor(a[0]), tensor(a[1]), std::nullopt, a[4].toIntVector(), a[2].toIntVector(),
                         a[5].toIntVector(), true, a[3].toIntVector(), a[6].toInt());
}

// Arguments: input, weight, bias, stride, padding, dilation, groups.
at::Tensor with_relu(Arguments a) {
  return convolved(tensor(a[0]), tensor(a[1]), optional(a[2]), a[3].toIntVector(), a[4].toIntVector(),
                   a[5].toIntVector(), a[6].toInt())
      .relu_();
}

// Arguments: input, weight, what is added, its factor, bias, stride, padding, dilation, groups.
at::Tensor with_sum_and_relu(Arguments a) {
  const at::Scalar factor = a[3].isNone() ? at::Scalar(1.0) : a[3].toScalar();
  return convolved(tensor(a[0]), tensor(a[1]), optional(a[4]), a[5].toIntVector(), a[6].toIntVector(),
                   a[7].toIntVector(), a[8].toInt())
      .add_(tensor(a[2]), factor)
      .relu_();
}

constexpr std::int64_t bilinear = 0, zeros = 0;
at::Tensor sampled(Arguments a) { return at::grid_sampler_2d(tensor(a[0]), tensor(a[1]), bilinear, zeros, true); }

// Arguments: theta or its grid's gradient, and the four sizes.
std::vector<std::int64_t> four(Arguments a) { return {a[1].toInt(), a[2].toInt(), a[3].toInt(), a[4].toInt()}; }
at::Tensor grid(Arguments a) { return at::affine_grid_generator(tensor(a[0]), four(a), true); }
at::Tensor grid_backward(Arguments a) { return at::affine_grid_generator_backward(tensor(a[0]), four(a), true); }

void sampled_backward(const c10::OperatorHandle& /*op*/, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const Stack a(stack->end() - 3, stack->end());
  torch::jit::drop(*stack, 3);
  const auto [input, places] =
      at::grid_sampler_2d_backward(tensor(a[2]), tensor(a[0]), tensor(a[1]), bilinear, zeros, true, {true, true});
  stack->emplace_back(input);
  stack->emplace_back(places);
}

// A kernel of CUDA's key that calls one function on CUDA's tensors, and one that copies its result into an output.
template <at::Tensor (*function)(Arguments)>
void call(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const Stack a(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  stack->emplace_back(function(a));
}

template <at::Tensor (*function)(Arguments)>
void call_into(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const at::Tensor out = tensor(stack->back());
  call<function>(op, keys, stack);
  const at::Tensor result = tensor(torch::jit::pop(*stack));
  out.resize_(result.sizes());
  out.copy_(result);
  stack->emplace_back(out);
}

template <at::Tensor (*function)(Arguments)>
void add_convolution(Registrar& registrar, const std::string& name) {
  registrar.boxed(name, torch::CppFunction::makeFromBoxedFunction<&call<function>>(), How::own);
  registrar.boxed(name + ".out", torch::CppFunction::makeFromBoxedFunction<&call_into<function>>(), How::own);
}

// The sizes of the bias, the fourth argument, tell no more than the weight does. The CPU's kernel takes them.
operators::Recipe whole_backward() {
  operators::Recipe recipe;
  recipe.shape = [](const c10::OperatorHandle& /*op*/, Stack* stack) {
    stack->erase(stack->begin() + 3);
    const operators::Results results = operators::rules::convolution_backward(*stack);
    stack->assign(results.begin(), results.end());
  };
  return recipe;
}

}  // namespace

void add_convolutions(Registrar& registrar) {
  operators::Recipe forward = operators::convolution();
  forward.body = nullptr;  // the CPU's kernel of this name
  registrar.launched("convolution", std::move(forward), How::own);
  registrar.launched("convolution_backward", whole_backward(), How::own);
  add_convolution<depthwise>(registrar, "_conv_depthwise2d");
  add_convolution<depthwise>(registrar, "conv_depthwise3d");
  add_convolution<cudnn>(registrar, "cudnn_convolution");
  add_convolution<cudnn_transposed>(registrar, "cudnn_convolution_transpose");
  add_convolution<with_relu>(registrar, "cudnn_convolution_relu");
  add_convolution<with_sum_and_relu>(registrar, "cudnn_convolution_add_relu");
  add_convolution<sampled>(registrar, "cudnn_grid_sampler");
  add_convolution<grid>(registrar, "cudnn_affine_grid_generator");
  add_convolution<grid_backward>(registrar, "cudnn_affine_grid_generator_backward");
  registrar.boxed("cudnn_grid_sampler_backward", torch::CppFunction::makeFromBoxedFunction<&sampled_backward>(),
                  How::own);
}

}  // namespace simcuda
