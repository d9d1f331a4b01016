// Streams: queues of work that the threads of one pool run in order; and marks, on which events are based.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "capture.h"
#include "device_state.h"
#include "queue.h"

namespace soft {

// Runs in a stream's thread, later than its launch. It must hold only addresses and plain values, and no reference that
// Python could see: the allocator's rules keep memory, as on a GPU. An exception becomes the device's error.
using Work = std::function<void()>;

// A point in a stream's queue: done once all work before it is.
class Mark : public work::Mark {
 public:
  void wait() const;  // blocks the calling thread; throws Failure(capture) for a mark recorded in a capture
  // Returns the time when the stream reached it; throws Failure(invalid) if the mark is not done.
  Clock::time_point time() const;
  // Whether it was recorded in a capture. Such a mark is never done.
  bool captured() const { return captured_; }
  // For operations that such a mark does not permit: invalidates its capture, and throws Failure(capture).
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  friend class Stream;

  // The capture in which the mark was recorded, and the node before it; not set outside captures.
  std::weak_ptr<Capture> capture_;
  int node_ = -1;
  bool captured_ = false;  // stays true after the capture has ended
};

class Stream {
 public:
  enum class Priority : int { normal = 0, high = -1 };
  static constexpr std::int64_t default_id = 0;

  // `id` is unique on the device.
  Stream(DeviceState& device, std::int64_t id, Priority priority);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  DeviceState& device() const { return device_; }
  std::int64_t id() const { return id_; }
  Priority priority() const { return priority_; }

  // Queues work, or adds a node to the capture if the stream is capturing. `name` must never be freed. On a synchronous
  // device, returns once the work is done. Throws Failure if the device has failed.
  void launch(const char* name, Work work);

  // Returns a mark after all work launched so far.
  std::shared_ptr<Mark> mark();

  // For allocators etc.: returns a mark after all queued work, regardless of captures and failures; null if none is
  // left.
  std::shared_ptr<Mark> fence();

  // Makes later work wait for the mark. A mark of a capture makes the stream join that capture.
  void wait(const std::shared_ptr<Mark>& mark);

  // Query the stream, and wait until no work is left. Throw Failure if the device has failed or the stream is
  // capturing.
  bool query();
  void synchronize();

  // Returns the stream's capture, or null.
  std::shared_ptr<Capture> capture() const;
  // For graphs: begin a capture, and end the stream's part in it. `enter` throws Failure(capture) if the stream is
  // already capturing. `leave` returns this stream's last node in the capture, or -1.
  void enter(const std::shared_ptr<Capture>& capture);
  int leave();

 private:
  void enqueue(const char* name, Work work);  // the caller holds the mutex
  work::Task task(const char* name, Work work);
  void run(const char* name, const Work& work);
  void flush();  // the caller holds the mutex

  DeviceState& device_;
  const std::int64_t id_;
  const Priority priority_;
  const std::shared_ptr<work::Queue> queue_;
  mutable std::mutex mutex_;
  std::optional<work::Task> held_;  // waits for its successor, which then goes first (a fault)
  std::shared_ptr<Capture> capture_;
  int tail_ = -1;  // this stream's last node in its capture
};

// The threads of all streams in the process.
work::Pool& pool();

// Makes the calling stream sleep for that long; the end of the process interrupts it.
void sleep_in_stream(std::chrono::nanoseconds duration);

}  // namespace soft
