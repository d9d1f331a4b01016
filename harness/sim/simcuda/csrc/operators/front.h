// The interface that `operators` is compiled against for the simulated CUDA: torch's own streams, allocator and
// generators.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/cuda/CUDAStream.h>
#include <simcuda_races.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace operators {

constexpr const char* kFront = "simulated CUDA";
constexpr c10::DeviceType kDevice = c10::DeviceType::CUDA;
constexpr c10::DispatchKey kKey = c10::DispatchKey::CUDA;
// CUDA's operators launch no kernel if there are no elements.
constexpr bool kSkipsEmpty = true;

// The memory that a launch uses, for the check for races. Without that check it stays empty.
class Accesses {
 public:
  void read(const at::Tensor& tensor) { add(tensor, false); }
  void write(const at::Tensor& tensor) { add(tensor, true); }

 private:
  friend class Stream;
  void add(const at::Tensor& tensor, bool write);
  std::vector<SimcudaAccess> runs_;
};

// A stream of the device. All methods throw torch's exceptions.
class Stream {
 public:
  explicit Stream(c10::cuda::CUDAStream stream) : stream_(stream) {}

  // An exception of the work becomes a device-side assertion. `name` must never be freed.
  void launch(const char* name, std::function<void()> work, const Accesses& accesses = {}) const;
  void synchronize() const;
  bool capturing() const;
  // Invalidates the stream's capture, and throws.
  [[noreturn]] void refuse(const std::string& why) const;

  c10::DeviceIndex device() const { return stream_.device_index(); }

 private:
  c10::cuda::CUDAStream stream_;
};

// Returns the device's current stream.
Stream current_stream(c10::DeviceIndex device);

// Allocates memory at the call. Its contents are undefined until work of the stream writes them.
at::Tensor make_strided(c10::DeviceIndex device, at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype);

// Returns the storage's bytes for the host: the memory itself, or a copy where the host may not use it.
c10::DataPtr on_host(const c10::Storage& storage);

// Sets the tensor's sizes and strides, and grows its storage if it is too small.
void resize_to(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

// Takes, at the launch, as many random numbers as CUDA's kernels take for that many elements. The work calls the
// returned function in the stream's thread, and gets its own CPU generator, seeded with seed and offset.
std::function<at::Generator()> draw(const std::optional<at::Generator>& generator, const Stream& stream,
                                    std::int64_t elements);

// The simulated CUDA injects no faults.
enum class Weakness { none };
inline Weakness weakness_of(const std::string& /*name*/) { return Weakness::none; }
inline void spoil_arguments(Weakness /*weakness*/, std::vector<c10::IValue>& /*arguments*/) {}
inline void spoil_result(Weakness /*weakness*/, at::Tensor& /*result*/) {}
inline bool captures_stale_inputs(const Stream& /*stream*/) { return false; }

}  // namespace operators
