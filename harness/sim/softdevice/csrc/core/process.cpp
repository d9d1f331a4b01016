#include "process.h"

#include <pthread.h>

#include <atomic>
#include <system_error>

#include "failure.h"

namespace soft {

namespace {

std::atomic<bool> forked_{false};

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

}  // namespace soft
