#include "observer.h"

#include <time.h>

#include <atomic>
#include <mutex>

#include "callbacks.h"
#include "records.h"

namespace simcuda::cupti {

namespace {

std::atomic<CUpti_TimestampCallbackFunc> clock_{nullptr};

void observe(const SimcudaActivity* activity) {
  tell_record(*activity);
  call_back(*activity);
}

}  // namespace

void observe_what_is_enabled() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const int calls = records_enabled() || call_callbacks_enabled() ? simcuda_observe_calls : 0;
  const int contexts = context_callbacks_enabled() ? simcuda_observe_contexts : 0;
  simcudaObserve(&observe, &now, calls | contexts);
}

void set_clock(CUpti_TimestampCallbackFunc clock) { clock_.store(clock, std::memory_order_release); }

std::uint64_t now() {
  if (const auto clock = clock_.load(std::memory_order_acquire)) return clock();
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace simcuda::cupti
