// The numbers that a launch takes from torch's generator for CUDA.
#pragma once

#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

namespace simcuda {

// Takes that many numbers from the generator, by default that of the device.
inline at::PhiloxCudaState take_numbers(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
                                        std::uint64_t numbers) {
  auto* from =
      at::get_generator_or_default<at::CUDAGeneratorImpl>(generator, at::cuda::detail::getDefaultCUDAGenerator(device));
  const std::lock_guard<std::mutex> lock(from->mutex_);
  return from->philox_cuda_state(numbers);
}

// Returns seed and offset, as at::cuda::philox::unpack does in a kernel. The state of a captured launch has their
// addresses in device memory, so call this in the stream's thread.
inline std::pair<std::uint64_t, std::uint64_t> unpack(const at::PhiloxCudaState& state) {
  if (!state.captured_) {
    return {state.seed_.val, state.offset_.val};
  }
  return {static_cast<std::uint64_t>(*state.seed_.ptr),
          static_cast<std::uint64_t>(*state.offset_.ptr) + state.offset_intragraph_};
}

}  // namespace simcuda
