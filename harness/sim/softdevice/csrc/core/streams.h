// The streams of a device, created at its first use.
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
  static constexpr std::int64_t last = 2 * per_priority;  // ids 1 to 32 have normal priority, 33 to 64 high priority

  explicit Streams(DeviceState& device) : device_(device) {}

  bool awake() const;                       // whether the streams were created
  Stream& get(std::int64_t id);             // throws Failure(invalid) for an unknown id
  Stream& next(Stream::Priority priority);  // round robin
  std::vector<Stream*> all();               // empty before they are created
  // Waits for all streams, regardless of failures and captures.
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
