#include "clock.h"

#include <time.h>

#include <atomic>

namespace simcuda::cupti {

namespace {

std::atomic<CUpti_TimestampCallbackFunc> clock_{nullptr};

}  // namespace

void set_clock(CUpti_TimestampCallbackFunc clock) { clock_.store(clock, std::memory_order_release); }

std::uint64_t now() {
  if (const auto clock = clock_.load(std::memory_order_acquire)) return clock();
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(time.tv_nsec);
}

}  // namespace simcuda::cupti
