// The visible devices: their properties, their sticky errors, and the current device of each thread.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <cstddef>

namespace simcuda {

class Device {
 public:
  Device(int index, int number, std::size_t memory);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const int index;           // among the visible devices
  const int number;          // among all devices of the machine
  const std::size_t memory;  // bytes

  // Sets the sticky error. The first one stays until the process ends.
  void fail(cudaError_t error, const char* why);
  cudaError_t error() const { return error_.load(std::memory_order_acquire); }

  bool peer_enabled(int other) const { return peers_ & (1ull << other); }
  void enable_peer(int other);   // throws Error
  void disable_peer(int other);  // throws Error

 private:
  std::atomic<cudaError_t> error_{cudaSuccess};
  std::atomic<unsigned long long> peers_{0};
};

int device_count() noexcept;
Device& device(int index);  // throws Error(cudaErrorInvalidDevice)
Device& current_device();   // throws Error(cudaErrorNoDevice) if there is none
int current_index() noexcept;
void set_current_index(int index) noexcept;  // of the calling thread

}  // namespace simcuda
