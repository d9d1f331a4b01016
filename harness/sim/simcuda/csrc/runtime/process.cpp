#include "process.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "activity.h"

namespace simcuda {

namespace {

constexpr int threads = 16;

std::atomic<bool> initialized_{false};
std::atomic<bool> forked_{false};
std::atomic<bool> in_use_{false};
thread_local int host_functions = 0;
thread_local int driver_calls = 0;

// The order of SIMCUDA_ORDER.
work::Order wanted_order() {
  const char* const value = std::getenv("SIMCUDA_ORDER");
  if (value == nullptr) return work::Order::soon;
  const std::string_view name = value;
  if (name == "earliest") return work::Order::earliest;
  if (name == "latest") return work::Order::latest;
  if (name == "reversed") return work::Order::reversed;
  std::fprintf(stderr, "simulated CUDA: SIMCUDA_ORDER=%s: expected earliest, latest or reversed; it is ignored\n",
               value);
  return work::Order::soon;
}

// Running work may use objects that the destructors of statics destroy, so it must end before they run. The wait is
// limited, since a host function that waits for the exiting thread would never end.
void end_process() {
  if (!forked()) pool().abandon(std::chrono::seconds(2));
}

}  // namespace

bool initialized() { return initialized_.load(std::memory_order_acquire); }
bool forked() { return forked_.load(std::memory_order_relaxed); }

void enter_driver() { ++driver_calls; }
void leave_driver() { --driver_calls; }
void note_use() {
  if (driver_calls == 0 && !in_use()) in_use_.store(true, std::memory_order_relaxed);
}
bool in_use() { return in_use_.load(std::memory_order_relaxed); }

void initialize() {
  if (initialized()) return;
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] {
      forked_.store(true, std::memory_order_relaxed);
      activity::wanted_.store(0, std::memory_order_relaxed);  // threads lost in the fork may hold the observer's locks
    });
    std::atexit(end_process);
    initialized_.store(true, std::memory_order_release);
  });
}

work::Pool& pool() {
  static auto* const pool = [] {
    auto* const made = new work::Pool("simcuda", threads);
    made->set_order(wanted_order());
    made->at_start(&allow_device_memory);
    return made;
  }();
  return *pool;
}

InHostFunction::InHostFunction() { ++host_functions; }
InHostFunction::~InHostFunction() { --host_functions; }
bool InHostFunction::now() { return host_functions > 0; }

}  // namespace simcuda
