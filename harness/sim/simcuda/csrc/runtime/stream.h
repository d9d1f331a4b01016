// Streams: queues of work on a device, in the order that CUDA gives them.
//
// CUDA Runtime API, "Stream synchronization behavior": the legacy default stream waits for all blocking streams of its
// device and they wait for it; streams made with cudaStreamNonBlocking do not take part.
#pragma once

#include <driver_types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "../../../softdevice/csrc/core/queue.h"
#include "device.h"

namespace simcuda {

using Work = work::Task;
using work::Item;
using work::Mark;
// The first half of work that needs others: the second half comes when they have finished the mark.
using Begin = std::function<void(std::shared_ptr<Mark>)>;

// What the legacy default stream of a device and its blocking streams know of each other. The mutex is held while work
// is pushed to any of them: their order is one for all.
struct StreamOrder {
  std::mutex mutex;
  std::shared_ptr<work::Queue> legacy;
  std::vector<std::shared_ptr<work::Queue>> blocking;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  enum class Kind { created, legacy, per_thread };

  // Of a context (context.h), which makes it.
  Stream(Device& device, StreamOrder& order, Kind kind, unsigned flags, int priority);

  Device& device() const { return device_; }
  cudaStream_t handle() { return reinterpret_cast<cudaStream_t>(this); }
  bool legacy() const { return kind_ == Kind::legacy; }
  bool blocking() const {
    return kind_ == Kind::per_thread || (kind_ == Kind::created && !(flags_ & cudaStreamNonBlocking));
  }
  unsigned flags() const { return flags_; }
  int priority() const { return priority_; }
  unsigned long long id() const { return id_; }
  unsigned long long activity_id() const { return legacy() ? 0 : id_; }  // for observers of activities

  // These three neither look at captures nor at the device's error.
  void push(const char* name, Work work, Begin begin = nullptr);  // guarded, see below
  void push(std::vector<Item> items);                             // as they are
  void wait(std::shared_ptr<Mark> mark);                          // what is pushed from now on begins after it
  // A mark behind what was pushed so far; done if nothing is left to do. `reached` is called just before it is.
  std::shared_ptr<Mark> mark(Work reached = nullptr);

  // Whether nothing is left to do; for the legacy stream, in the blocking streams as well.
  bool idle();
  void drain() { mark()->wait(); }

  std::map<int, cudaStreamAttrValue> attributes;  // those that were set; under the mutex of captures

 private:
  friend class Context;

  Device& device_;
  StreamOrder& order_;
  const Kind kind_;
  const unsigned flags_;
  const int priority_;
  const unsigned long long id_;
  const std::shared_ptr<work::Queue> queue_;
};

// Runs work in a thread of the pool: with the device as the current one, not at all if the device has failed, and with
// what it throws as the device's sticky error. Observers are told of it, under the number of its node if a graph runs.
void run_guarded(Device& device, const char* name, const Work& work, std::uint64_t node = 0);
// The mark is finished at once if the work is not begun.
void begin_guarded(Device& device, const char* name, const Begin& begin, const std::shared_ptr<Mark>& mark);

constexpr int lowest_priority = 0, highest_priority = -5;  // as on an H100

}  // namespace simcuda
