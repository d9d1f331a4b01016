#include "stream.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "config.h"
#include "failure.h"
#include "faults.h"
#include "process.h"

namespace soft {

namespace {

constexpr int threads = 16;

}  // namespace

work::Pool& pool() {
  static auto* const pool = new work::Pool("soft", threads);  // the pool's threads outlive the destructors of statics
  return *pool;
}

void Mark::wait() const {
  if (captured_) throw Failure(Code::capture, "cannot wait for an event that was recorded in a capture");
  work::Mark::wait();
}

Mark::Clock::time_point Mark::time() const {
  if (!done()) throw Failure(Code::invalid, "an event that is not done has no time");
  return work::Mark::time();
}

void Mark::refuse(const std::string& why) const {
  if (const auto capture = capture_.lock()) capture->state_->refuse(why);
  throw Failure(Code::capture, "the capture has ended: " + why);
}

Stream::Stream(DeviceState& device, std::int64_t id, Priority priority)
    : device_(device),
      id_(id),
      priority_(priority),
      queue_(std::make_shared<work::Queue>(pool(), static_cast<int>(priority))) {}

void Stream::launch(const char* name, Work work) {
  device_.check();
  if (strikes(Fault::launch_kills_process)) std::abort();
  if (strikes(Fault::device_lost)) {
    device_.fail(Code::lost, "the device was lost at the launch of " + std::string(name));
    device_.check();
  }
  {
    const std::lock_guard lock(mutex_);
    if (capture_) {
      tail_ = capture_->state_->add(name, std::move(work), tail_);
      return;
    }
    enqueue(name, std::move(work));
  }
  if (!Config::get().synchronous) return;
  if (const auto mark = fence()) mark->wait();
  device_.check();
}

void Stream::enqueue(const char* name, Work work) {
  if (strikes(Fault::launch_hangs)) {
    work = [] { pool().pause(work::for_ever); };
  } else if (strikes(Fault::slow)) {
    work = [work = std::move(work)] {
      const auto begin = Mark::Clock::now();
      work();
      pool().pause((Mark::Clock::now() - begin) * 9 + std::chrono::milliseconds(1));
    };
  }
  work::Task task = this->task(name, std::move(work));
  if (!held_ && !injected(Fault::wrong_stream_order)) {
    queue_->push({nullptr, std::move(task), nullptr});
  } else if (!held_) {
    // Hold the task until its successor comes or a mark needs it, so that nothing visible happens before the swap.
    held_ = std::move(task);
  } else if (strikes(Fault::wrong_stream_order)) {
    queue_->push({nullptr, std::move(task), nullptr});
    flush();
  } else {
    flush();
    held_ = std::move(task);
  }
}

std::shared_ptr<Mark> Stream::mark() {
  check_not_forked();
  auto mark = std::make_shared<Mark>();
  const std::lock_guard lock(mutex_);
  if (capture_) {
    mark->capture_ = capture_;
    mark->node_ = tail_;
    mark->captured_ = true;
    return mark;
  }
  flush();
  if (queue_->idle()) {
    mark->finish();
  } else {
    queue_->push({nullptr, nullptr, mark});
  }
  return mark;
}

std::shared_ptr<Mark> Stream::fence() {
  check_not_forked();
  const std::lock_guard lock(mutex_);
  flush();
  if (queue_->idle()) return nullptr;
  auto mark = std::make_shared<Mark>();
  queue_->push({nullptr, nullptr, mark});
  return mark;
}

void Stream::wait(const std::shared_ptr<Mark>& mark) {
  check_not_forked();
  if (mark->captured_) {
    const auto capture = mark->capture_.lock();
    if (!capture) throw Failure(Code::capture, "cannot wait for an event of a capture that has ended");
    Capture::State& state = *capture->state_;
    if (id_ == default_id) state.refuse("the default stream cannot be captured, but waits for a capture");
    state.admit(device_.index());
    const std::lock_guard lock(mutex_);
    if (!capture_) {
      state.join(*this);
      capture_ = capture;
      tail_ = mark->node_;
    } else if (capture_ == capture) {
      tail_ = state.follow(tail_, mark->node_);
    } else {
      const std::string why = "a stream of one capture waits for an event of another";
      capture_->state_->invalidate(why);
      state.refuse(why);
    }
    return;
  }
  const std::lock_guard lock(mutex_);
  if (capture_) capture_->state_->refuse("a captured stream waits for an event that is not of its capture");
  if (strikes(Fault::wait_ignored) || mark->done()) return;
  flush();
  queue_->push({mark, nullptr, nullptr});
}

bool Stream::query() {
  device_.check();
  if (const auto capture = this->capture()) capture->state_->refuse("asks for the state of a stream that is captured");
  forbid_while_capturing("a stream's query");
  const std::lock_guard lock(mutex_);
  flush();
  return queue_->poll();
}

void Stream::synchronize() {
  device_.check();
  if (const auto capture = this->capture()) capture->state_->refuse("waits for a stream that is captured");
  forbid_while_capturing("a stream's synchronize");
  if (!strikes(Fault::synchronize_early)) {
    if (const auto mark = fence()) mark->wait();
  }
  device_.check();
}

std::shared_ptr<Capture> Stream::capture() const {
  check_not_forked();
  const std::lock_guard lock(mutex_);
  return capture_;
}

void Stream::enter(const std::shared_ptr<Capture>& capture) {
  const std::lock_guard lock(mutex_);
  if (capture_) throw Failure(Code::capture, "cannot capture a stream that is captured already");
  capture->state_->join(*this);
  capture_ = capture;
  tail_ = -1;
}

int Stream::leave() {
  const std::lock_guard lock(mutex_);
  capture_.reset();
  return std::exchange(tail_, -1);
}

void Stream::flush() {
  if (held_) {
    queue_->push({nullptr, std::move(*held_), nullptr});
    held_.reset();
  }
}

work::Task Stream::task(const char* name, Work work) {
  return [this, name, work = std::move(work)] { run(name, work); };
}

void Stream::run(const char* name, const Work& work) {
  if (device_.failure()) return;
  try {
    work();
  } catch (const Failure& failure) {
    device_.fail(failure.code, std::string(name) + ": " + failure.what());
  } catch (const std::exception& error) {
    device_.fail(Code::assertion, std::string(name) + ": " + error.what());
  } catch (...) {
    device_.fail(Code::assertion, std::string(name) + ": an exception that is no std::exception");
  }
}

void sleep_in_stream(std::chrono::nanoseconds duration) { pool().pause(duration); }

}  // namespace soft
