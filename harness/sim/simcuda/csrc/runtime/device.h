// The visible devices, and which of them each thread uses.
#pragma once

#include <driver_types.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "../../../softdevice/csrc/core/queue.h"

namespace simcuda {

class Stream;

class Device {
 public:
  Device(int index, int number, std::size_t memory);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const int index;           // among the visible ones
  const int number;          // among all of the machine
  const std::size_t memory;  // bytes

  // Makes its context, at the first call. Memory, streams and work need one.
  void wake();
  bool awake() const { return awake_.load(std::memory_order_acquire); }

  // A sticky error: the first one stays until the process ends.
  void fail(cudaError_t error, const char* why);
  cudaError_t error() const { return error_.load(std::memory_order_acquire); }

  std::shared_ptr<Stream> legacy_stream();
  // Waits until all that was queued on all streams so far is done, whatever fails or is captured.
  void drain();
  bool idle();

  bool peer_enabled(int other) const { return peers_ & (1ull << other); }
  void enable_peer(int other);   // throws Error
  void disable_peer(int other);  // throws Error

 private:
  friend class Stream;
  void add(const std::shared_ptr<Stream>& stream);
  void remove(Stream& stream);  // what it has queued goes on
  std::vector<std::shared_ptr<work::Queue>> queues();

  std::atomic<bool> awake_{false};
  std::atomic<cudaError_t> error_{cudaSuccess};
  std::atomic<unsigned long long> peers_{0};
  std::once_flag woken_;
  std::shared_ptr<Stream> legacy_;
  mutable std::mutex mutex_;  // of the lists
  std::vector<std::shared_ptr<Stream>> streams_;
  std::vector<std::shared_ptr<work::Queue>> leaving_;  // of destroyed streams, while they are busy
  // Held while work is pushed to the legacy stream or to a stream that waits for it: their order is one for all.
  std::mutex order_;
  std::vector<std::shared_ptr<work::Queue>> blocking_;  // what the legacy stream waits for; under order_
};

// What a context takes of a device's memory: no process ever has all of it.
constexpr std::size_t context_memory(std::size_t memory) {
  return std::min(std::size_t{16} << 20, memory / 16 / 4096 * 4096);
}

int device_count() noexcept;
Device& device(int index);  // throws Error(cudaErrorInvalidDevice)
Device& current_device();   // throws Error(cudaErrorNoDevice) if there is none
int current_index() noexcept;
void set_current_index(int index) noexcept;  // of the calling thread

}  // namespace simcuda
