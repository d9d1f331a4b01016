// Streams: queues of work on a device, in CUDA's order.
//
// CUDA Runtime API, "Stream synchronization behavior": the legacy default stream waits for all blocking streams of its
// device, and they wait for it. Streams created with cudaStreamNonBlocking do not take part.
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
#include "races.h"

namespace simcuda {

using Work = work::Task;
using work::Item;
using work::Mark;
// The first part of work that needs other streams. The second part runs when any thread has finished the mark.
using Begin = std::function<void(std::shared_ptr<Mark>)>;

// The legacy default stream of a device and its blocking streams. The mutex is held while work is pushed to any of
// them, since they have a common order.
struct StreamOrder {
  std::mutex mutex;
  std::shared_ptr<work::Queue> legacy;
  std::vector<std::shared_ptr<work::Queue>> blocking;
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  enum class Kind { created, legacy, per_thread };

  // Streams are created by their context (context.h).
  Stream(Device& device, StreamOrder& order, Kind kind, unsigned flags, int priority);

  Device& device() const { return device_; }
  cudaStream_t handle() { return reinterpret_cast<cudaStream_t>(this); }
  bool created() const { return kind_ == Kind::created; }
  bool legacy() const { return kind_ == Kind::legacy; }
  bool blocking() const {
    return kind_ == Kind::per_thread || (kind_ == Kind::created && !(flags_ & cudaStreamNonBlocking));
  }
  unsigned flags() const { return flags_; }
  int priority() const { return priority_; }
  unsigned long long id() const { return id_; }
  unsigned long long activity_id() const { return legacy() ? 0 : id_; }  // for observers of activities

  races::Timeline& timeline() { return timeline_; }

  // These three ignore captures and the device's error.
  void push(const char* name, Work work, Begin begin = nullptr);  // guarded, see below
  void push(std::vector<Item> items);                             // not guarded
  void wait(std::shared_ptr<Mark> mark);                          // what is pushed from now on begins after it
  // Returns a mark after all work pushed so far; it is finished if the stream is idle. `reached` is called just before
  // the mark finishes.
  std::shared_ptr<Mark> mark(Work reached = nullptr);

  // Whether no work is left; for the legacy stream, also none in the blocking streams.
  bool idle();
  bool poll();  // `idle`, for a host that asks: what is held back begins (work::Queue::poll)
  void drain() {
    mark()->wait();
    races::learn(timeline_);
  }

  std::map<int, cudaStreamAttrValue> attributes;  // the attributes that were set; guarded by the mutex of captures

 private:
  friend class Context;

  Device& device_;
  StreamOrder& order_;
  const Kind kind_;
  const unsigned flags_;
  const int priority_;
  const unsigned long long id_;
  const std::shared_ptr<work::Queue> queue_;
  races::Timeline timeline_;
};

// Runs work in a thread of the pool, with the device as the current one. If the device has failed, the work does not
// run. An exception becomes the device's sticky error. The work is reported to observers, with its node's number if a
// graph runs.
void run_guarded(Device& device, const char* name, const Work& work, std::uint64_t node = 0);
// Finishes the mark immediately if the work does not begin.
void begin_guarded(Device& device, const char* name, const Begin& begin, const std::shared_ptr<Mark>& mark);

constexpr int lowest_priority = 0, highest_priority = -5;  // as on an H100

}  // namespace simcuda
