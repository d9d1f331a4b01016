// Events: marks that can be recorded repeatedly.
#pragma once

#include <memory>
#include <mutex>

#include "stream.h"

namespace soft {

class Event {
 public:
  // `timing`: whether elapsed_time works. (All events wait by blocking, not by spinning.)
  Event(int device, bool timing) : device_(device), timing_(timing) {}

  int device() const { return device_; }
  bool timing() const { return timing_; }
  bool recorded() const;

  void record(Stream& stream);
  // Makes the stream wait for the last record. An event that was never recorded blocks nothing.
  void block(Stream& stream);
  // Query the last record and wait for it. Throw Failure if the device has failed, or because of a capture.
  bool query() const;
  void synchronize() const;

  // Returns the milliseconds between two events. Throws Failure(invalid) if an event has no timing, was not recorded or
  // is not done, and for events of two devices.
  static double elapsed(const Event& from, const Event& to);

 private:
  std::shared_ptr<Mark> mark() const;

  const int device_;
  const bool timing_;
  mutable std::mutex mutex_;
  std::shared_ptr<Mark> mark_;
};

}  // namespace soft
