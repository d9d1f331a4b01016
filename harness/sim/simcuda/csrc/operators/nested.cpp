// Nested tensors. torch builds most of their operators from dense ones. Those that have their own CUDA kernels are
// built from dense ones here, too, as torch does for other devices.
#include <ATen/DimVector.h>
#include <ATen/NestedTensorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_transform_bias_rescale_qkv.h>
#include <ATen/ops/native_layer_norm.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "bodies.h"
#include "own.h"

namespace simcuda {
namespace {

template <c10::DispatchKey key>
void as_elsewhere(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(key), stack);
}

// Returns queries, keys and values of all heads from a nested tensor, padded with zeros.
std::tuple<at::Tensor, at::Tensor, at::Tensor> heads(const at::Tensor& joined, const at::Tensor& bias,
                                                     std::int64_t count) {
  return at::_transform_bias_rescale_qkv(joined.to_padded_tensor(0), bias, count);
}

// Normalises over the last dimensions, which all parts share. The parts are contiguous in the buffer.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor& input, at::IntArrayRef shape,
                                                          const std::optional<at::Tensor>& weight,
                                                          const std::optional<at::Tensor>& bias, double epsilon) {
  TORCH_CHECK_VALUE(weight.has_value() && weight->defined() && bias.has_value() && bias->defined(),
                    "NestedTensor layer_norm requires weight and bias");
  const at::Tensor whole = input.contiguous();
  const auto* parts = at::native::get_nested_tensor_impl(whole);
  at::DimVector sizes = {-1};
  sizes.append(shape.begin(), shape.end());
  const auto [output, mean, deviation] =
      at::native_layer_norm(parts->get_buffer().view(sizes), shape, weight, bias, epsilon);
  return {at::detail::make_tensor<at::native::NestedTensorImpl>(output.view(-1), parts->get_nested_sizes()), mean,
          deviation};
}

}  // namespace

void add_nested(Registrar& registrar) {
  registrar.boxed("_nested_from_padded",
                  torch::CppFunction::makeFromBoxedFunction<&as_elsewhere<c10::DispatchKey::CPU>>(), How::composite);
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::NestedTensorCUDA, __FILE__, __LINE__);
  for (const char* name : {"to_padded_tensor", "bmm"}) {
    library->impl(name, torch::CppFunction::makeFromBoxedFunction<&as_elsewhere<c10::DispatchKey::NestedTensorCPU>>());
  }
  library->impl("native_layer_norm", &layer_norm);
  library->impl("_transform_bias_rescale_qkv", &heads);
}

}  // namespace simcuda
