// The interface that `operators` is compiled against for this device: the dispatch key PrivateUse1, with the core's
// streams.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "../core/device.h"
#include "faulty.h"

namespace operators {

constexpr const char* kFront = "soft";
constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;
constexpr c10::DispatchKey kKey = c10::DispatchKey::PrivateUse1;
// Whether an operator that writes no elements is not launched.
constexpr bool kSkipsEmpty = false;

// The memory that a launch uses. The software device does not look at it.
struct Accesses {
  void read(const at::Tensor& /*tensor*/) {}
  void write(const at::Tensor& /*tensor*/) {}
};

// A stream of the device. All methods throw torch's exceptions.
class Stream {
 public:
  explicit Stream(soft::Stream& core) : core_(&core) {}

  // An exception of the work becomes a device-side assertion. `name` must never be freed.
  void launch(const char* name, soft::Work work, const Accesses& accesses = {}) const;
  void synchronize() const;
  bool capturing() const;
  // Invalidates the stream's capture, and throws.
  [[noreturn]] void refuse(const std::string& why) const;

  soft::Stream& core() const { return *core_; }

 private:
  soft::Stream* core_;
};

// Returns the device's current stream.
Stream current_stream(c10::DeviceIndex device);

// Allocates memory at the call. Its contents are undefined until work of the stream writes them.
at::Tensor make_strided(c10::DeviceIndex device, at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype);

// Returns the storage's bytes for the host, which may use the memory itself.
inline c10::DataPtr on_host(const c10::Storage& storage) { return {storage.mutable_data(), c10::Device(c10::kCPU)}; }

// Sets the tensor's sizes and strides, and grows its storage if it is too small.
void resize_to(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

// Takes random numbers at the launch, or from the capture if `stream` is capturing. The work calls the returned
// function in the stream's thread, and gets its own CPU generator, seeded with seed and offset.
std::function<at::Generator()> draw(const std::optional<at::Generator>& generator, const Stream& stream,
                                    std::int64_t elements);

// For the faults, see faulty.h.
using soft::aten::spoil_arguments;
using soft::aten::spoil_result;
using soft::aten::Weakness;
using soft::aten::weakness_of;
// Whether work captured now keeps the current values of its inputs (a fault).
bool captures_stale_inputs(const Stream& stream);

}  // namespace operators
