// Events: the work queued on a stream when the event was last recorded, in this process or in another one.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "activity.h"
#include "device.h"
#include "stream.h"

namespace simcuda {

struct Capture;
struct IpcEventPage;  // ipc_event.h
struct Node;

class Event : public std::enable_shared_from_this<Event> {
 public:
  Event(Device& device, unsigned flags) : device_(device), flags_(flags) {}

  Device& device() const { return device_; }
  unsigned flags() const { return flags_; }
  bool timing() const { return !(flags_ & cudaEventDisableTiming); }
  cudaEvent_t handle() { return reinterpret_cast<cudaEvent_t>(this); }

  // The mark of the last record; null if there is none, or if it was in a capture.
  std::shared_ptr<Mark> mark() const;
  void set_mark(std::shared_ptr<Mark> mark);  // called by a record on a stream or in a graph

  // The event's identity in reports: its number, and the number of its last record.
  activity::EventRecord activity_record() const {
    return {device_.index, number_, record_.load(std::memory_order_relaxed)};
  }
  void count_record(bool observed) { record_.store(observed ? activity::next_record() : 0, std::memory_order_relaxed); }

  // The capture of the last record, guarded by the mutex of graphs.
  std::atomic<bool> captured{false};  // stays true after the capture has ended
  std::weak_ptr<Capture> capture;
  std::vector<Node*> nodes;

  std::shared_ptr<IpcEventPage> page;  // only for an interprocess event

 private:
  Device& device_;
  const unsigned flags_;
  const std::uint32_t number_ = activity::next_event();
  std::atomic<std::uint64_t> record_{0};
  mutable std::mutex mutex_;
  std::shared_ptr<Mark> mark_;
};

std::shared_ptr<Event> find_event(cudaEvent_t handle);  // throws Error(cudaErrorInvalidResourceHandle)
void add_event(std::shared_ptr<Event> event);
void remove_event(cudaEvent_t handle);  // throws the same error

}  // namespace simcuda
