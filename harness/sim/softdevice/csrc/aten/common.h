// Helpers of the layer between torch and the core.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <utility>

#include "../core/device.h"

namespace soft::aten {

constexpr c10::DeviceType kSoft = c10::DeviceType::PrivateUse1;

// Runs `call` and converts the core's exceptions to torch's: Failure to c10::AcceleratorError with its code, or to a
// plain c10::Error if its code is `invalid`, and OutOfMemory to c10::OutOfMemoryError.
[[noreturn]] void rethrow_as_torch();
template <typename Call>
auto translated(Call&& call) -> decltype(call()) {
  try {
    return std::forward<Call>(call)();
  } catch (const c10::Error&) {
    throw;
  } catch (...) {
    rethrow_as_torch();
  }
}

// torch's streams have the device index and the id of the core's streams.
inline c10::Stream to_torch(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSoft, static_cast<c10::DeviceIndex>(stream.device().index())),
                     stream.id());
}
Stream& from_torch(const c10::Stream& stream);

// A device without an index is the thread's current device.
Device& core_device(c10::Device device);
inline Device& core_device(const at::Tensor& tensor) { return core_device(tensor.device()); }
// Returns the current stream of the tensor's device, on which operations are launched.
inline Stream& stream_of(const at::Tensor& tensor) { return soft::current_stream(core_device(tensor).index()); }

}  // namespace soft::aten
