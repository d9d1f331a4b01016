#include "factories.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <c10/core/StorageImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "../core/config.h"
#include "memory.h"

namespace soft::aten {
namespace {

Device& target(std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pinned) {
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "soft: only strided tensors, asked for ", *layout);
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  return core_device(device.value_or(c10::Device(kSoft)));
}

std::vector<c10::ScalarType> types_left_out() {
  std::vector<c10::ScalarType> found;
  for (const std::string& name : Config::get().without_types) {
    const std::size_t before = found.size();
    for (int i = 0; i < static_cast<int>(c10::ScalarType::Undefined); ++i) {
      const auto dtype = static_cast<c10::ScalarType>(i);
      if (c10::getDtypeNames(dtype).first == name) found.push_back(dtype);
    }
    TORCH_CHECK(found.size() > before, "SOFT_WITHOUT_TYPES: '", name, "' is no type of torch");
  }
  return found;
}

// Returns whether tensors of the devices can have a type. As on real devices, some of torch's types can be missing.
bool has_type(c10::ScalarType dtype) {
  static const std::vector<c10::ScalarType> without = types_left_out();
  return std::find(without.begin(), without.end(), dtype) == without.end();
}

c10::ScalarType or_default(std::optional<c10::ScalarType> dtype) {
  return dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool> pinned,
                 std::optional<c10::MemoryFormat> format) {
  at::detail::check_size_nonnegative(sizes);
  Device& core = target(layout, device, pinned);
  const auto order = format.value_or(c10::MemoryFormat::Contiguous);
  if (order == c10::MemoryFormat::Contiguous) {
    std::vector<std::int64_t> strides(sizes.size());
    std::int64_t step = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      strides[i] = step;
      step *= std::max<std::int64_t>(sizes[i], 1);
    }
    return make_strided(core, sizes, strides, or_default(dtype));
  }
  at::Tensor tensor = make_strided(core, {0}, {1}, or_default(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  tensor.unsafeGetTensorImpl()->empty_tensor_restride(order);  // refuses a format that does not match the sizes
  return make_strided(core, sizes, tensor.strides(), or_default(dtype));
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                         std::optional<bool> pinned) {
  at::detail::check_size_nonnegative(sizes);
  TORCH_CHECK(sizes.size() == strides.size(), "dimensionality of sizes (", sizes.size(),
              ") must match dimensionality of strides (", strides.size(), ")");
  return make_strided(target(layout, device, pinned), sizes, strides, or_default(dtype));
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  at::detail::check_size_nonnegative(sizes);
  if (self.sizes() != sizes) {
    resize_to(self, sizes, at::detail::defaultStrides(sizes));
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

}  // namespace

at::Tensor make_strided(Device& device, at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(has_type(dtype), "soft: this device has no ", c10::getDtypeNames(dtype).first);
  const std::size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocate(bytes, device), c10::GetAllocator(kSoft), true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void resize_to(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const std::size_t bytes = at::detail::computeStorageNbytes(sizes, strides, tensor.element_size(),
                                                             static_cast<std::size_t>(tensor.storage_offset()));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  if (tensor.numel() > 0 && bytes > tensor.storage().nbytes()) {
    at::native::resize_bytes_nocuda(tensor.storage(), bytes);
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize_);
}

}  // namespace soft::aten
