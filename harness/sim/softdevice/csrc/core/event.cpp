#include "event.h"

#include <string>

#include "capture.h"
#include "device.h"
#include "faults.h"

namespace soft {

bool Event::recorded() const { return mark() != nullptr; }

void Event::record(Stream& stream) {
  if (stream.device().index() != device_) {
    throw Failure(Code::invalid, "cannot record an event of device " + std::to_string(device_) +
                                     " on a stream of device " + std::to_string(stream.device().index()));
  }
  auto mark = stream.mark();
  if (!mark->captured() && strikes(Fault::event_early)) {
    mark = std::make_shared<Mark>();
    mark->finish();
  }
  const std::lock_guard lock(mutex_);
  mark_ = std::move(mark);
}

void Event::block(Stream& stream) {
  if (const auto mark = this->mark()) stream.wait(mark);
}

bool Event::query() const {
  soft::device(device_).check();
  const auto mark = this->mark();
  if (!mark) return true;
  if (mark->captured()) mark->refuse("asks for the state of an event that was recorded in a capture");
  forbid_while_capturing("an event's query");
  return mark->poll();
}

void Event::synchronize() const {
  soft::device(device_).check();
  const auto mark = this->mark();
  if (!mark) return;
  if (mark->captured()) mark->refuse("waits for an event that was recorded in a capture");
  forbid_while_capturing("an event's synchronize");
  mark->wait();
  soft::device(device_).check();
}

double Event::elapsed(const Event& from, const Event& to) {
  if (!from.timing_ || !to.timing_) {
    throw Failure(Code::invalid, "cannot tell the time between events of which one was made without timing");
  }
  if (from.device_ != to.device_) {
    throw Failure(Code::invalid, "cannot tell the time between events of two devices");
  }
  const auto first = from.mark();
  const auto last = to.mark();
  if (!first || !last) {
    throw Failure(Code::invalid, "cannot tell the time between events of which one was not recorded");
  }
  if (first->captured() || last->captured()) {
    throw Failure(Code::invalid, "cannot tell the time between events of which one was recorded in a capture");
  }
  if (!first->done() || !last->done()) {
    throw Failure(Code::invalid, "cannot tell the time between events of which one is not done yet");
  }
  return std::chrono::duration<double, std::milli>(last->time() - first->time()).count();
}

std::shared_ptr<Mark> Event::mark() const {
  const std::lock_guard lock(mutex_);
  return mark_;
}

}  // namespace soft
