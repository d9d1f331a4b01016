// Devices of this process, and which of them, and which stream of each, a thread uses.
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

// A visible device. Its streams' threads start when it is first used.
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
  // The same without any checks: whatever has failed or is being captured.
  void drain() { streams_.drain(); }

 private:
  const std::string uuid_;
  Streams streams_;
  Allocator allocator_;
};

// The visible devices, made at the first call and never destroyed.
int device_count() noexcept;
Device& device(int index);  // throws Failure(invalid)

// Of the calling thread: 0 and the default streams at first.
int current_device() noexcept;
int exchange_device(int index);  // the one before; throws Failure(invalid)
Stream& current_stream(int device);
void set_current_stream(Stream& stream);

// Drops what is queued, cuts sleeps short, and returns once no stream's thread runs anything: for the end of a process.
// One that hangs (a fault) is woken too.
void abandon();

}  // namespace soft
