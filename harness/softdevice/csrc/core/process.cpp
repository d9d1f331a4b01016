#include "process.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>

#include "failure.h"

namespace soft {

namespace {

std::atomic<bool> forked_{false};
std::atomic<bool> ending_{false};

// Leaked, since streams' threads outlive the destructors of statics.
struct Alarm {
  std::mutex mutex;
  std::condition_variable rung;
};

Alarm& alarm() {
  static Alarm* const alarm = new Alarm;
  return *alarm;
}

}  // namespace

void watch_forks() {
  static const int status = pthread_atfork(nullptr, nullptr, [] { forked_.store(true, std::memory_order_relaxed); });
  if (status != 0) throw std::system_error(status, std::generic_category(), "pthread_atfork");
}

bool forked() { return forked_.load(std::memory_order_relaxed); }

void check_not_forked() {
  if (forked()) {
    throw Failure(Code::invalid,
                  "cannot use the soft device in a process that was forked after its parent had used it: "
                  "start the process with the 'spawn' method, or fork before the device is first used");
  }
}

bool ending() { return ending_.load(std::memory_order_acquire); }

void begin_ending() {
  {
    const std::lock_guard lock(alarm().mutex);
    ending_.store(true, std::memory_order_release);
  }
  alarm().rung.notify_all();
}

void pause_for(std::chrono::nanoseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  std::unique_lock lock(alarm().mutex);
  alarm().rung.wait_until(lock, end, ending);
}

void pause_for_ever() {
  std::unique_lock lock(alarm().mutex);
  alarm().rung.wait(lock, ending);
}

}  // namespace soft
