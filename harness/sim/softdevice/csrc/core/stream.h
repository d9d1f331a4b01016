// Streams: queues of work that the threads of one pool take in order; and the marks that events are.
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

// Runs in a stream's thread, later than its launch. It must hold no reference that Python could see (addresses and
// plain values only): memory is kept by the allocator's rules, as on a GPU. What it throws becomes the device's error.
using Work = std::function<void()>;

// A moment in a stream's queue: done once all that was before it is.
class Mark : public work::Mark {
 public:
  void wait() const;  // blocks the calling thread; throws Failure(capture) for one that was recorded in a capture
  // When the stream came to it; throws Failure(invalid) for a mark that is not done.
  Clock::time_point time() const;
  // Whether it was recorded in a capture. Such a mark is never done.
  bool captured() const { return captured_; }
  // What is not allowed for such a mark: invalidates its capture, and throws Failure(capture).
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  friend class Stream;

  // The capture this mark was recorded in, and the node it follows there; a mark of no capture has none.
  std::weak_ptr<Capture> capture_;
  int node_ = -1;
  bool captured_ = false;  // stays true when the capture is gone
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

  // Appends work, or while the stream is captured adds a node to the capture. `name` must live for ever.
  // On a synchronous device it returns once the work is done. Throws Failure when the device has failed.
  void launch(const char* name, Work work);

  // A mark behind all that has been launched so far.
  std::shared_ptr<Mark> mark();

  // For allocators and the like: a mark behind what is queued, whether or not the stream is captured or the device has
  // failed; null when nothing is left to do.
  std::shared_ptr<Mark> fence();

  // What is launched from now on begins after the mark is done. A mark of a capture brings the stream into it.
  void wait(const std::shared_ptr<Mark>& mark);

  // Whether nothing is left to do; waiting until so. Throw Failure: the device's, or that the stream is captured.
  bool query();
  void synchronize();

  // The capture the stream is in, or null.
  std::shared_ptr<Capture> capture() const;
  // For graphs: the stream begins a capture, or leaves the one that it is in. `enter` throws Failure(capture) when it
  // is captured already; `leave` returns the last node of this stream in the capture, or -1.
  void enter(const std::shared_ptr<Capture>& capture);
  int leave();

 private:
  void enqueue(const char* name, Work work);  // needs the mutex
  work::Task task(const char* name, Work work);
  void run(const char* name, const Work& work);
  void flush();  // needs the mutex

  DeviceState& device_;
  const std::int64_t id_;
  const Priority priority_;
  const std::shared_ptr<work::Queue> queue_;
  mutable std::mutex mutex_;
  std::optional<work::Task> held_;  // waits for its successor, to change places with it (a fault)
  std::shared_ptr<Capture> capture_;
  int tail_ = -1;  // the last node of this stream in its capture
};

// The threads of all streams of the process.
work::Pool& pool();

// Has the calling stream do nothing for that long; cut short when the process ends.
void sleep_in_stream(std::chrono::nanoseconds duration);

}  // namespace soft
