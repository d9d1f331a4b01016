// What `operators` is compiled with for the simulated CUDA: torch's own streams, allocator and generators.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace operators {

constexpr const char* kFront = "simulated CUDA";
constexpr c10::DeviceType kDevice = c10::DeviceType::CUDA;
constexpr c10::DispatchKey kKey = c10::DispatchKey::CUDA;
// CUDA's operators launch no kernel without elements.
constexpr bool kSkipsEmpty = true;

// A stream of the device. All methods throw torch's errors.
class Stream {
 public:
  explicit Stream(c10::cuda::CUDAStream stream) : stream_(stream) {}

  // What the work throws becomes a device-side assertion. `name` must live for ever.
  void launch(const char* name, std::function<void()> work) const;
  void synchronize() const;
  bool capturing() const;
  // Spoils the capture that the stream is in, and throws.
  [[noreturn]] void refuse(const std::string& why) const;

  c10::DeviceIndex device() const { return stream_.device_index(); }

 private:
  c10::cuda::CUDAStream stream_;
};

// The one on which a device's work is launched now.
Stream current_stream(c10::DeviceIndex device);

// Memory allocated at the call, contents whatever its stream leaves there.
at::Tensor make_strided(c10::DeviceIndex device, at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype);

// Gives the tensor these sizes and strides, and its storage the bytes for them when it has too few.
void resize_to(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

// What a piece of random work calls in the stream's thread to have its own CPU generator, seeded from seed and place.
// `draw` itself is called at launch: it takes the numbers that CUDA's kernels take for that many elements.
std::function<at::Generator()> draw(const std::optional<at::Generator>& generator, const Stream& stream,
                                    std::int64_t elements);

// The simulated CUDA injects no faults.
enum class Weakness { none };
inline Weakness weakness_of(const std::string& /*name*/) { return Weakness::none; }
inline void spoil_arguments(Weakness /*weakness*/, std::vector<c10::IValue>& /*arguments*/) {}
inline void spoil_result(Weakness /*weakness*/, at::Tensor& /*result*/) {}
inline bool captures_stale_inputs(const Stream& /*stream*/) { return false; }

}  // namespace operators
