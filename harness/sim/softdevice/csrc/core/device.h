// The devices of this process, and the current device and streams of each thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "allocator.h"
#include "device_state.h"
#include "stream.h"
#include "streams.h"

namespace soft {

// A visible device. The threads of its streams start at its first use.
class Device : public DeviceState {
 public:
  static constexpr int streams_per_priority = Streams::per_priority;
  static constexpr std::int64_t default_stream = Stream::default_id;

  Device(int index, std::string uuid, std::size_t memory);

  const std::string& uuid() const { return uuid_; }
  Allocator& allocator() { return allocator_; }

  bool awake() const { return streams_.awake(); }                                     // whether it was used
  Stream& stream(std::int64_t id) { return streams_.get(id); }                        // throws Failure(invalid)
  Stream& next_stream(Stream::Priority priority) { return streams_.next(priority); }  // round robin
  std::vector<Stream*> streams() { return streams_.all(); }                           // none while not awake

  // Waits for all streams. Throws Failure.
  void synchronize();
  // Waits for all streams, regardless of failures and captures.
  void drain() { streams_.drain(); }

 private:
  const std::string uuid_;
  Streams streams_;
  Allocator allocator_;
};

// The visible devices, created at the first call and never destroyed.
int device_count() noexcept;
Device& device(int index);  // throws Failure(invalid)

// The calling thread's current device and streams; initially device 0 and the default streams.
int current_device() noexcept;
int exchange_device(int index);  // returns the previous device; throws Failure(invalid)
Stream& current_stream(int device);
void set_current_stream(Stream& stream);

// For the end of the process: drops queued work, interrupts sleeps and hanging work (a fault), and returns once no
// stream's thread runs work.
void abandon();

}  // namespace soft
