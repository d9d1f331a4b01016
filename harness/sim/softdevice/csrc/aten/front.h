// What `operators` is compiled with for this device: the dispatch key PrivateUse1, on the core's streams.
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
// Whether an operator that writes no element is not launched at all.
constexpr bool kSkipsEmpty = false;

// A stream of the device. All methods throw torch's errors.
class Stream {
 public:
  explicit Stream(soft::Stream& core) : core_(&core) {}

  // What the work throws becomes a device-side assertion. `name` must live for ever.
  void launch(const char* name, soft::Work work) const;
  void synchronize() const;
  bool capturing() const;
  // Spoils the capture that the stream is in, and throws.
  [[noreturn]] void refuse(const std::string& why) const;

  soft::Stream& core() const { return *core_; }

 private:
  soft::Stream* core_;
};

// The one on which a device's work is launched now.
Stream current_stream(c10::DeviceIndex device);

// Memory allocated at the call, contents whatever its stream leaves there.
at::Tensor make_strided(c10::DeviceIndex device, at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype);

// Gives the tensor these sizes and strides, and its storage the bytes for them when it has too few.
void resize_to(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

// What a piece of random work calls in the stream's thread to have its own CPU generator, seeded from seed and place.
// `draw` itself is called at launch: it takes numbers, from the capture when `stream` is captured.
std::function<at::Generator()> draw(const std::optional<at::Generator>& generator, const Stream& stream,
                                    std::int64_t elements);

// Faults: see faulty.h.
using soft::aten::spoil_arguments;
using soft::aten::spoil_result;
using soft::aten::Weakness;
using soft::aten::weakness_of;
// Whether what is captured now keeps the inputs' values of this moment.
bool captures_stale_inputs(const Stream& stream);

}  // namespace operators
