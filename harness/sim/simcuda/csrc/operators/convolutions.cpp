// Convolutions: those for which torch chooses a library, and those of cuDNN that programs call by name.
#include <ATen/TensorOperators.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/affine_grid_generator.h>
#include <ATen/ops/affine_grid_generator_backward.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/grid_sampler_2d_backward.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bodies.h"
#include "own.h"
#include "rehearsal.h"
#include "rules.h"

namespace simcuda {
namespace {

using at::native::ConvBackend;
using at::native::cudnn_conv_suggest_memory_format;

at::Tensor convolved(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                     at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, std::int64_t groups) {
  const std::vector<std::int64_t> none(stride.size(), 0);
  return at::convolution(input, weight, bias, stride, padding, dilation, false, none, groups);
}

// Arguments: input, weight, kernel's size, bias, stride, padding, dilation, and optionally the output.
at::Tensor depthwise(Arguments a) {
  return convolved(tensor(a[0]), tensor(a[1]), optional(a[3]), a[4].toIntVector(), a[5].toIntVector(),
                   a[6].toIntVector(), tensor(a[0]).size(1));
}

// Lays out a result as cuDNN does. The convolution may have run in a library that lays it out differently.
at::Tensor by_cudnn(Arguments a, const at::Tensor& result) {
  return result.contiguous(cudnn_conv_suggest_memory_format(tensor(a[0]), tensor(a[1])));
}

// Arguments: input, weight, padding, stride, dilation, groups, three flags, and optionally the output.
at::Tensor cudnn(Arguments a) {
  return by_cudnn(a, convolved(tensor(a[0]), tensor(a[1]), std::nullopt, a[3].toIntVector(), a[2].toIntVector(),
                               a[4].toIntVector(), a[5].toInt()));
}

at::Tensor cudnn_transposed(Arguments a) {
  return by_cudnn(a, at::convolution(tensor(a[0]), tensor(a[1]), std::nullopt, a[4].toIntVector(), a[2].toIntVector(),
                                     a[5].toIntVector(), true, a[3].toIntVector(), a[6].toInt()));
}

// Arguments: input, weight, bias, stride, padding, dilation, groups.
at::Tensor with_relu(Arguments a) {
  return by_cudnn(a, convolved(tensor(a[0]), tensor(a[1]), optional(a[2]), a[3].toIntVector(), a[4].toIntVector(),
                               a[5].toIntVector(), a[6].toInt()))
      .relu_();
}

// Arguments: input, weight, summand, its factor, bias, stride, padding, dilation, groups.
at::Tensor with_sum_and_relu(Arguments a) {
  const at::Scalar factor = a[3].isNone() ? at::Scalar(1.0) : a[3].toScalar();
  return by_cudnn(a, convolved(tensor(a[0]), tensor(a[1]), optional(a[4]), a[5].toIntVector(), a[6].toIntVector(),
                               a[7].toIntVector(), a[8].toInt()))
      .add_(tensor(a[2]), factor)
      .relu_();
}

constexpr std::int64_t bilinear = 0, zeros = 0;
at::Tensor sampled(Arguments a) { return at::grid_sampler_2d(tensor(a[0]), tensor(a[1]), bilinear, zeros, true); }

// Arguments: theta or the grid's gradient, and the four sizes.
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

// CUDA kernels that call one function on CUDA tensors; call_into also copies the result into an output.
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

// Launches `convolution` or its backward. The results have the layout of cuDNN or of torch's own kernels.
class Convolution final : public c10::OperatorKernel {
 public:
  explicit Convolution(bool backward)
      : backward_(backward), cudnn_(recipe(backward, true)), own_(recipe(backward, false)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    switch (chosen(Arguments(*stack).slice(stack->size() - op.schema().arguments().size()))) {
      case ConvBackend::Empty:  // torch builds it from other operators
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
        return;
      case ConvBackend::Cudnn:
      case ConvBackend::CudnnTranspose:
        cudnn_(op, keys, stack);
        return;
      default:
        own_(op, keys, stack);
    }
  }

 private:
  // Returns the backend that torch chooses, after torch's checks. Arguments: input, weight, bias, stride, padding,
  // dilation, whether it is transposed, output padding, groups. The backward has the result's gradient in front, and
  // the sizes of the bias in place of the bias.
  ConvBackend chosen(Arguments a) const {
    std::optional<std::vector<c10::SymInt>> sizes;
    if (backward_) {
      a = a.slice(1);
      if (!a[2].isNone()) {
        sizes = a[2].toSymIntVector();
      }
    }
    return at::native::select_conv_backend(
        tensor(a[0]), tensor(a[1]), backward_ ? std::nullopt : optional(a[2]), a[3].toSymIntVector(),
        a[4].toSymIntVector(), a[5].toSymIntVector(), a[6].toBool(), a[7].toSymIntVector(), a[8].toInt(),
        sizes.has_value() ? at::OptionalSymIntArrayRef(*sizes) : at::OptionalSymIntArrayRef());
  }

  static operators::Recipe recipe(bool backward, bool by_cudnn) {
    operators::Recipe recipe;
    recipe.check = rehearsal(backward ? "convolution_backward" : "convolution");
    recipe.shape = [backward, by_cudnn](const c10::OperatorHandle& /*op*/, Stack* stack) {
      const Arguments tensors = Arguments(*stack).slice(backward ? 1 : 0);
      const at::MemoryFormat format = by_cudnn
                                          ? cudnn_conv_suggest_memory_format(tensor(tensors[0]), tensor(tensors[1]))
                                          : at::MemoryFormat::Contiguous;
      if (backward) {
        stack->erase(stack->begin() + 3);  // the sizes of the bias follow from the weight
      }
      const operators::Results results =
          backward ? operators::rules::convolution_backward(*stack) : operators::rules::convolution(*stack);
      for (const at::Tensor& result : results) {
        if (result.defined() && result.dim() > 1) {
          result.unsafeGetTensorImpl()->empty_tensor_restride(format);
        }
      }
      stack->assign(results.begin(), results.end());
    };
    return recipe;
  }

  const bool backward_;
  operators::Launch cudnn_, own_;
};

}  // namespace

void add_convolutions(Registrar& registrar) {
  for (const bool backward : {false, true}) {
    registrar.boxed(backward ? "convolution_backward" : "convolution",
                    torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Convolution>(backward)), How::own);
  }
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
