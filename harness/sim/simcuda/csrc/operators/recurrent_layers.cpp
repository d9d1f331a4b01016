// The choice of cuDNN for a recurrent layer. torch makes the choice above the dispatcher, and asks cuDNN for the memory
// layout of weights, so this file replaces the whole layer. If cuDNN is not chosen, torch's own code runs.
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_cudnn_rnn.h>
#include <ATen/ops/cudnn_is_acceptable.h>

#include <string>
#include <tuple>
#include <vector>

#include "bodies.h"
#include "own.h"

namespace simcuda {
namespace {

constexpr std::int64_t lstm = 2;

std::int64_t mode_of(const std::string& name) {
  return name == "aten::rnn_relu" ? 0 : name == "aten::rnn_tanh" ? 1 : name == "aten::lstm" ? lstm : 3;
}

// Arguments: input, states, parameters, whether there are biases, layers, dropout, training, bidirectional,
// batch_first. For packed input, the batch sizes follow the input, and batch_first is missing.
void layers(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  Stack a(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  const at::Tensor input = tensor(a[0]);
  const std::int64_t mode = mode_of(op.schema().name());
  const bool packed = op.schema().overload_name() == "data";
  const std::vector<at::Tensor> parameters = a[packed ? 3 : 2].toTensorVector();
  if (!at::cudnn_is_acceptable(input) || parameters.empty()) {
    // The CPU has the composite kernel under this key.
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::AutogradCPU), stack);
    return;
  }
  torch::jit::drop(*stack, count);
  std::vector<std::int64_t> batch_sizes;
  if (packed) {
    const at::Tensor sizes = tensor(a[1]).contiguous();
    TORCH_CHECK(sizes.is_cpu(), "batch_sizes tensor should be on CPU, but got on GPU");
    batch_sizes.assign(sizes.const_data_ptr<std::int64_t>(), sizes.const_data_ptr<std::int64_t>() + sizes.numel());
    a.erase(a.begin() + 1);
    a.emplace_back(false);
  }
  const std::vector<at::Tensor> states =
      mode == lstm ? a[1].toTensorVector() : std::vector<at::Tensor>{a[1].toTensor()};
  const std::int64_t layer_count = a[4].toInt(), directions = a[7].toBool() ? 2 : 1;
  const auto each = static_cast<std::int64_t>(parameters.size()) / (layer_count * directions);
  const std::int64_t hidden = mode == lstm ? states[1].size(2) : states[0].size(2);
  const std::int64_t projected = mode == lstm && states[0].size(2) != hidden ? states[0].size(2) : 0;
  const auto result =
      at::_cudnn_rnn(input, parameters, each, std::nullopt, states[0],
                     mode == lstm ? std::optional(states[1]) : std::nullopt, mode, hidden, projected, layer_count,
                     a[8].toBool(), a[5].toDouble(), a[6].toBool(), a[7].toBool(), batch_sizes, std::nullopt);
  stack->emplace_back(std::get<0>(result));
  stack->emplace_back(std::get<1>(result));
  if (mode == lstm) {
    stack->emplace_back(std::get<2>(result));
  }
}

// Under autocast, casts all tensors to its type. torch's own kernel would ask cuDNN for the layout of weights here,
// too.
void cast(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::Autocast);
  const at::ScalarType dtype = at::autocast::get_autocast_dtype(c10::kCUDA);
  const std::size_t count = op.schema().arguments().size();
  for (auto value = stack->end() - static_cast<std::ptrdiff_t>(count); value != stack->end(); ++value) {
    if (value->isTensor() && value->toTensor().defined()) {
      *value = at::autocast::cached_cast(dtype, value->toTensor(), c10::kCUDA);
    } else if (value->isTensorList()) {
      std::vector<at::Tensor> tensors = value->toTensorVector();
      for (at::Tensor& one : tensors) {
        one = at::autocast::cached_cast(dtype, one, c10::kCUDA);
      }
      *value = tensors;
    }
  }
  op.callBoxed(stack);
}

}  // namespace

void add_recurrent_layers() {
  using c10::DispatchKey;
  for (const DispatchKey key : {DispatchKey::AutogradCUDA, DispatchKey::CUDA}) {
    auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);  // never freed
    for (const char* name : {"lstm", "gru", "rnn_tanh", "rnn_relu"}) {
      for (const char* overload : {".input", ".data"}) {
        library->impl((std::string(name) + overload).c_str(), torch::CppFunction::makeFromBoxedFunction<&layers>());
      }
    }
  }
  static auto* autocast = new torch::Library(torch::Library::IMPL, "aten", DispatchKey::Autocast, __FILE__, __LINE__);
  autocast->impl("_cudnn_rnn", torch::CppFunction::makeFromBoxedFunction<&cast>());
}

}  // namespace simcuda
