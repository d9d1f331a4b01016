#include "fallback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StorageImpl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "front.h"
#include "on_host.h"

namespace operators {
namespace {

bool on_device(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kDevice; }

// Returns a tensor over a storage's bytes, with the layout, conjugate and negative bits of `like`.
at::Tensor over(const c10::Storage& storage, c10::DispatchKey key, const at::Tensor& like) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage),
                                                         c10::DispatchKeySet(key), like.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) {
    result._set_conj(true);
  }
  if (like.is_neg()) {
    result._set_neg(true);
  }
  return result;
}

// Converts arguments to tensors on the CPU, and results back. Read-only arguments use the device's memory, or a copy.
// Written arguments are always copied, since the operator may resize them.
class Crossing {
 public:
  at::Tensor lend(const at::Tensor& tensor, bool written) {
    if (!on_device(tensor)) {
      return tensor;
    }
    device_ = tensor.device();
    at::Tensor alias = over(host_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
    if (!written) {
      return alias;
    }
    at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(), alias.options());
    copy.copy_(alias);
    written_.emplace_back(tensor, copy);
    return copy;
  }

  void write_back() const {
    for (const auto& [tensor, copy] : written_) {
      if (tensor.sizes() != copy.sizes()) {
        resize_to(tensor, copy.sizes(), copy.strides());
      }
      tensor.copy_(copy);
    }
  }

  // Converts a result: it is an argument, a view of one, or a new tensor.
  at::Tensor bring(const at::Tensor& result) const {
    if (!result.defined() || !device_.has_value()) {
      return result;
    }
    for (const auto& [tensor, copy] : written_) {
      if (result.is_same(copy)) {
        return tensor;
      }
      if (result.storage().is_alias_of(copy.storage())) {
        return over(tensor.storage(), kKey, result);
      }
    }
    for (const auto& [original, host] : storages_) {
      if (result.storage().is_alias_of(host)) {
        return over(original, kKey, result);
      }
    }
    TORCH_CHECK(result.layout() == c10::kStrided, kFront, ": only strided tensors, got ", result.layout());
    at::Tensor tensor = make_strided(device_->index(), result.sizes(), result.strides(), result.scalar_type());
    tensor.copy_(result);
    return tensor;
  }

  const std::optional<c10::Device>& device() const { return device_; }
  void set_device(c10::Device device) { device_ = device; }

 private:
  c10::Storage host_storage(const c10::Storage& original) {
    for (const auto& [known, host] : storages_) {
      if (known.is_alias_of(original)) {
        return host;
      }
    }
    c10::Storage host(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), original.nbytes(),
                                                            on_host(original), nullptr, false));
    storages_.emplace_back(original, host);
    return host;
  }

  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
  std::optional<c10::Device> device_;
};

// Waits for the device's current stream, for an operator that accesses the memory directly.
void settle(const char* name, c10::Device device) {
  const Stream stream = current_stream(device.index());
  if (stream.capturing()) {
    stream.refuse(std::string(name) + " is not among the operators that the device can run in a graph");
  }
  stream.synchronize();
}

c10::IValue lent(Crossing& crossing, const char* name, const c10::IValue& value, bool written) {
  const auto lend = [&](const at::Tensor& tensor) {
    if (on_device(tensor)) {
      settle(name, tensor.device());
    }
    return crossing.lend(tensor, written);
  };
  if (value.isTensor()) {
    return lend(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> result;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      result.push_back(lend(tensor));
    }
    return result;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> result;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      result.push_back(tensor.has_value() ? std::optional<at::Tensor>(lend(*tensor)) : std::nullopt);
    }
    return result;
  }
  return value;
}

bool wants_generator(const c10::Argument& argument) {
  const auto optional = argument.type()->cast<c10::OptionalType>();
  return (optional ? optional->getElementType() : argument.type())->kind() == c10::TypeKind::GeneratorType;
}

}  // namespace

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const char* name = schema.name().c_str();
  const std::size_t count = schema.arguments().size();
  unify_lists(stack, count);
  const std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  at::AutoDispatchBelowADInplaceOrView below_autograd;

  Crossing crossing;
  std::optional<c10::Device> device;
  torch::jit::Stack host;
  for (std::size_t i = 0; i < count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (arguments[i].isDevice() && arguments[i].toDevice().type() == kDevice) {
      device = arguments[i].toDevice();
      settle(name, *device);
      host.emplace_back(c10::Device(c10::kCPU));
    } else {
      host.push_back(lent(crossing, name, arguments[i], written));
    }
  }
  if (device.has_value()) {
    crossing.set_device(*device);
  }
  const std::optional<c10::Device> where = crossing.device();
  for (std::size_t i = 0; i < count; ++i) {
    if (where.has_value() && wants_generator(schema.arguments()[i])) {
      host[i] = draw(arguments[i].toOptional<at::Generator>(), current_stream(where->index()), 1)();
    }
  }

  call_on_host(op, &host);

  crossing.write_back();
  for (const c10::IValue& result : host) {
    if (result.isTensor()) {
      stack->emplace_back(crossing.bring(result.toTensor()));
    } else if (result.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : result.toTensorVector()) {
        tensors.push_back(crossing.bring(tensor));
      }
      stack->emplace_back(std::move(tensors));
    } else {
      stack->push_back(result);
    }
  }
}

}  // namespace operators
