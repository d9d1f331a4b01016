// The streams of a device. They are made when it is first used.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "device_state.h"
#include "stream.h"

namespace soft {

class Streams {
 public:
  static constexpr int per_priority = 32;
  static constexpr std::int64_t last = 2 * per_priority;  // ids 1 to 32 are of normal priority, 33 to 64 of high

  explicit Streams(DeviceState& device) : device_(device) {}

  bool awake() const;                       // whether they were made
  Stream& get(std::int64_t id);             // throws Failure(invalid) for an id that is none
  Stream& next(Stream::Priority priority);  // round robin
  std::vector<Stream*> all();               // none before they were made
  // Waits for all of them, whatever has failed or is being captured.
  void drain();

 private:
  void wake();

  DeviceState& device_;
  std::once_flag woken_;
  std::atomic<bool> awake_{false};
  std::vector<std::unique_ptr<Stream>> streams_;
  std::atomic<unsigned> next_[2] = {0, 0};
};

}  // namespace soft
