// A device for torch with as little as a package can register: PrivateUse1 in the memory of the host.
//
// It has no caching allocator, no host allocator, no autocast and no graphs. Its seeds have 32 bits, its memory
// survives a fork, and its work is done when a call returns. Kernels of the CPU compute, by torch's fallback.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

namespace {

constexpr auto kPlain = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kPlain, 0);
std::atomic<bool> used = false;

// Memory.

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    used = true;
    if (bytes == 0) return {nullptr, kDevice};
    void* data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "plain: out of memory, asked for ", bytes, " bytes");
    return {data, data, &std::free, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kPlain, &allocator);

// Random numbers: a generator of the CPU with seeds of 32 bits.

struct Generator final : c10::GeneratorImpl {
  Generator() : GeneratorImpl(kDevice, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  at::Generator numbers = at::detail::createCPUGenerator();

  void set_current_seed(std::uint64_t seed) override {
    TORCH_CHECK(seed <= std::numeric_limits<std::uint32_t>::max(), "plain: seeds have 32 bits, got ", seed);
    numbers.set_current_seed(seed);
  }
  std::uint64_t current_seed() const override { return numbers.current_seed(); }
  std::uint64_t seed() override {
    const auto drawn = c10::detail::getNonDeterministicRandom(false);
    set_current_seed(drawn & std::numeric_limits<std::uint32_t>::max());
    return current_seed();
  }
  // The state has all of it. torch asks for the offset when it pickles a generator.
  void set_offset(std::uint64_t) override {}
  std::uint64_t get_offset() const override { return 0; }
  void set_state(const c10::TensorImpl& state) override { numbers.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return numbers.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator();
    copy->numbers = numbers.clone();
    return copy;
  }
};

at::Generator& default_generator() {
  static auto* generator = new at::Generator(at::make_generator<Generator>());
  return *generator;
}

// Devices, streams and events. A stream is a number, since no work is ever pending.

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return used; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex index) const override { exchangeDevice(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    TORCH_CHECK(index == 0, "plain: there is no device ", static_cast<int>(index));
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void*) const override { return false; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Generator>(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    c10::DataPtr data = allocator.allocate(bytes);
    if (const auto kept = std::min(bytes, impl->nbytes()); kept > 0) std::memcpy(data.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(bytes);
  }
};
const bool hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

thread_local c10::StreamId current_stream = 0;
std::atomic<c10::StreamId> streams = 0;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kPlain; }
  c10::Device exchangeDevice(c10::Device device) const override {
    setDevice(device);
    return kDevice;
  }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() <= 0, "plain: there is no device ", device);
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void synchronizeDevice(const c10::DeviceIndex) const override { used = true; }
  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return stream(++streams); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(++streams); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    return stream(std::exchange(current_stream, next.id()));
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new std::chrono::steady_clock::time_point();
    at(*event) = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(from != nullptr && to != nullptr, "plain: both events must be recorded");
    return std::chrono::duration<double, std::milli>(at(to) - at(from)).count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<std::chrono::steady_clock::time_point*>(event);
  }

 private:
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }
  static std::chrono::steady_clock::time_point& at(void* event) {
    return *static_cast<std::chrono::steady_clock::time_point*>(event);
  }
};
const c10::impl::DeviceGuardImplRegistrar guard_registered(kPlain, new Guard());

// Tensors.

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool>) {
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "plain: only strided tensors, asked for ", *layout);
  TORCH_CHECK(!device || device->index() <= 0, "plain: there is no device ", *device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(c10::get_default_dtype_as_scalartype()));
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "plain: only strided tensors, asked for ", *layout);
  TORCH_CHECK(!device || device->index() <= 0, "plain: there is no device ", *device);
  return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(c10::get_default_dtype_as_scalartype()), format);
}

void resize_to(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  const auto bytes = at::detail::computeStorageNbytes(sizes, strides, tensor.element_size(),
                                                      static_cast<std::size_t>(tensor.storage_offset()));
  if (bytes > tensor.storage().nbytes()) at::native::resize_bytes_nocuda(tensor.storage(), bytes);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  if (self.sizes() != sizes) resize_to(self, sizes, at::detail::defaultStrides(sizes));
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, std::int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  at::native::checkSetStorage(self, std::move(source), offset, sizes, strides);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  if (strides.empty() && !sizes.empty()) {
    resize_to(self, sizes, at::detail::defaultStrides(sizes));
  } else {
    resize_to(self, sizes, strides);
  }
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto elements = static_cast<std::int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {elements}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0, allocator.allocate(0),
                                                       &allocator, true);
  return set_storage(self, at::Storage(std::move(storage)), 0, {0}, {1});
}

// The same memory as a tensor of the CPU, with the marks of conjugation and negation.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) return tensor;
  at::Tensor host = at::from_blob(static_cast<char*>(tensor.storage().mutable_data()) +
                                      tensor.storage_offset() * static_cast<std::int64_t>(tensor.element_size()),
                                  tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  return host;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  if (target.numel() > 0) on_host(target).copy_(on_host(source));
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) { return at::_local_scalar_dense(on_host(self)); }

void record_stream(at::Tensor&, at::Stream) {}

at::Tensor to_device(const at::Tensor& host) { return host.defined() ? host.to(kDevice) : host; }

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  const std::optional<at::Tensor> added = bias && bias->defined() ? std::optional(on_host(*bias)) : std::nullopt;
  return to_device(at::convolution(on_host(input), on_host(weight), added, stride, padding, dilation, transposed,
                                   output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& gradient, const at::Tensor& input,
                                                                    const at::Tensor& weight, at::IntArrayRef stride,
                                                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                    bool transposed, at::IntArrayRef output_padding,
                                                                    std::int64_t groups, std::array<bool, 3> wanted) {
  const auto [of_input, of_weight, of_bias] =
      at::convolution_backward(on_host(gradient), on_host(input), on_host(weight), at::IntArrayRef{weight.size(0)},
                               stride, padding, dilation, transposed, output_padding, groups, wanted);
  return {to_device(of_input), to_device(of_weight), to_device(of_bias)};
}

// The CPU's kernel, with the CPU's generator behind this device's.
void fallback(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& arguments = operation.schema().arguments();
  const std::size_t first = stack->size() - arguments.size();
  for (std::size_t index = 0; index < arguments.size(); ++index) {
    const auto* optional = arguments[index].type()->castRaw<c10::OptionalType>();
    if (optional == nullptr || optional->getElementType()->kind() != c10::TypeKind::GeneratorType) continue;
    c10::IValue& given = (*stack)[first + index];
    const at::Generator generator = given.isNone() ? default_generator() : given.toGenerator();
    TORCH_CHECK(generator.device().type() == kPlain, "Expected a 'plain' device type for generator but found '",
                generator.device().type(), "'");
    given = static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->numbers;
  }
  at::native::cpu_fallback(operation, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("set_.source_Storage", set_whole_storage);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("set_", set_nothing);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(at::native::view));
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("view_as_complex", at::native::view_as_complex);
  library.impl("is_set_to", at::native::is_set_to);
  library.impl("record_stream", record_stream);
  library.impl("_copy_from", copy_from);
  library.impl("_copy_from_and_resize", copy_from_and_resize);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("_local_scalar_dense", local_scalar_dense);
}

// docs/backends.md: without these, the copy of a marked tensor calls itself until the stack ends.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

}  // namespace

PYBIND11_MODULE(_native, module) {
  module.def("is_used", [] { return used.load(); });
  module.def("manual_seed", [](std::uint64_t seed) { default_generator().set_current_seed(seed); });
  module.def("seed", [] { return default_generator().seed(); });
  module.def("initial_seed", [] { return default_generator().current_seed(); });
  module.def("get_rng_state", [] { return at::Tensor(default_generator().get_state()); });
  module.def("set_rng_state", [](const at::Tensor& state) { default_generator().set_state(state); });
}
