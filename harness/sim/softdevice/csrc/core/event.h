// Events: marks that can be recorded again and again.
#pragma once

#include <memory>
#include <mutex>

#include "stream.h"

namespace soft {

class Event {
 public:
  // `timing`: whether it can be asked for the time. (All events wait by blocking, not by spinning.)
  Event(int device, bool timing) : device_(device), timing_(timing) {}

  int device() const { return device_; }
  bool timing() const { return timing_; }
  bool recorded() const;

  void record(Stream& stream);
  // Has the stream wait for what was last recorded; one that was never recorded holds up nobody.
  void block(Stream& stream);
  // Whether what was last recorded is done, and waiting for it. Throw Failure: the device's, or of a capture.
  bool query() const;
  void synchronize() const;

  // Milliseconds from one to the other. Throws Failure (invalid) when one has no timing, was not recorded, or is not
  // done, and for events of two devices.
  static double elapsed(const Event& from, const Event& to);

 private:
  std::shared_ptr<Mark> mark() const;

  const int device_;
  const bool timing_;
  mutable std::mutex mutex_;
  std::shared_ptr<Mark> mark_;
};

}  // namespace soft
