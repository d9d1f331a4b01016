// Devices of this process, and which of them, and which stream of each, a thread uses.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "allocator.h"
#include "failure.h"
#include "stream.h"

namespace soft {

// A visible device. Its streams' threads start when it is first used.
class Device {
 public:
  static constexpr int streams_per_priority = 32;
  static constexpr std::int64_t default_stream = 0;  // ids 1 to 32 are of normal priority, 33 to 64 of high

  Device(int index, std::string uuid, std::size_t memory);

  int index() const { return index_; }
  const std::string& uuid() const { return uuid_; }
  Allocator& allocator() { return *allocator_; }

  bool awake() const;                              // whether it was used
  Stream& stream(std::int64_t id);                 // throws Failure(invalid) for an id that is none
  Stream& next_stream(Stream::Priority priority);  // round robin
  std::vector<Stream*> streams();                  // all, none while it is not awake

  // Waits for all streams. Throws Failure.
  void synchronize();
  // The same without any checks: whatever has failed or is being captured.
  void drain();

  // Sticky errors: the first one stays.
  void fail(Code code, const std::string& what);
  std::optional<Failure> failure() const;
  void check() const;  // throws it

 private:
  void wake();

  const int index_;
  const std::string uuid_;
  std::unique_ptr<Allocator> allocator_;
  std::once_flag woken_;
  std::atomic<bool> awake_{false};
  std::vector<std::unique_ptr<Stream>> streams_;
  std::atomic<unsigned> next_[2] = {0, 0};
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_{false};
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
