// Streams: queues of work, each with a thread of its own that takes them in order; and the marks that events are.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

namespace soft {

class Capture;
class Device;

// Runs in a stream's thread, later than its launch. It must hold no reference that Python could see (addresses and
// plain values only): memory is kept by the allocator's rules, as on a GPU. What it throws becomes the device's error.
using Work = std::function<void()>;

// A moment in a stream's queue: done once all that was before it is.
class Mark {
 public:
  using Clock = std::chrono::steady_clock;

  bool done() const;
  void wait() const;  // blocks the calling thread
  // When the stream came to it; a mark that is not done has none.
  Clock::time_point time() const;
  // Whether it was recorded in a capture. Such a mark is never done, and waiting for it throws Failure(capture).
  bool captured() const { return captured_; }

 private:
  friend class Stream;
  friend class Event;
  friend class Capture;
  void finish();

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  Clock::time_point time_{};
  // The capture this mark was recorded in, and the node it follows there; a mark of no capture has none.
  std::weak_ptr<Capture> capture_;
  int node_ = -1;
  bool captured_ = false;  // stays true when the capture is gone
};

class Stream {
 public:
  enum class Priority : int { normal = 0, high = -1 };

  // `id` is unique on the device. The thread starts at once and lives as long as the process.
  Stream(Device& device, std::int64_t id, Priority priority);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  std::int64_t id() const { return id_; }
  Priority priority() const { return priority_; }

  // Appends work, or while the stream is captured adds a node to the capture. `name` must live for ever.
  // Throws Failure when the device has failed.
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

 private:
  friend class Capture;
  struct Item {
    const char* name;
    Work work;
    std::shared_ptr<Mark> mark;  // finished after the work, even when the work failed or was dropped
  };
  static void* begin(void* stream);
  void push(Item item);  // these three need the mutex
  void flush();
  bool idle() const;
  void serve();
  void run(Item& item);

  Device& device_;
  const std::int64_t id_;
  const Priority priority_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> queue_;
  std::optional<Item> held_;  // waits for its successor, to change places with it (a fault)
  bool busy_ = false;         // the thread is awake and looks at the queue before it sleeps
  std::uint64_t pushed_ = 0;
  std::atomic<std::uint64_t> finished_{0};  // of those pushed; what hangs on an item's mark sees it counted
  std::shared_ptr<Capture> capture_;
  int tail_ = -1;  // the last node of this stream in its capture
};

// The stack of each stream's thread; the system puts a guard page on top.
constexpr std::size_t stack_bytes = std::size_t{2} << 20;

// True in a stream's thread.
bool in_stream_thread();

// Has the calling stream's thread do nothing for that long; cut short when the process ends.
void sleep_in_stream(std::chrono::nanoseconds duration);

}  // namespace soft
