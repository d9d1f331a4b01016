#include "process.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "../include/simcuda.h"
#include "access.h"
#include "activity.h"
#include "call.h"
#include "device.h"
#include "trace.h"

namespace simcuda {

namespace {

constexpr int threads = 16;

std::atomic<bool> initialized_{false};
std::atomic<bool> forked_{false};
thread_local int host_functions = 0;

// Work that still runs may use what the destructors of statics take away, so that it ends before they run. A host
// function that waits for the thread that ends the process would never end: no wait is for ever.
void end_process() {
  if (!forked()) pool().abandon(std::chrono::seconds(2));
}

}  // namespace

bool initialized() { return initialized_.load(std::memory_order_acquire); }
bool forked() { return forked_.load(std::memory_order_relaxed); }

void initialize() {
  if (initialized()) return;
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork(nullptr, nullptr, [] {
      forked_.store(true, std::memory_order_relaxed);
      activity::wanted_.store(0, std::memory_order_relaxed);  // the observer's locks may be held by lost threads
    });
    std::atexit(end_process);
    initialized_.store(true, std::memory_order_release);
  });
}

work::Pool& pool() {
  static auto* const pool = new work::Pool("simcuda", threads);
  return *pool;
}

InHostFunction::InHostFunction() { ++host_functions; }
InHostFunction::~InHostFunction() { --host_functions; }
bool InHostFunction::now() { return host_functions > 0; }

cudaError_t begin_call(const char* name, Needs needs) {
  count("call", name);
  note_host_thread();
  if (needs == Needs::nothing) return cudaSuccess;
  if (InHostFunction::now()) return cudaErrorNotPermitted;
  if (forked()) return cudaErrorInitializationError;
  initialize();
  if (needs == Needs::driver) return cudaSuccess;
  const int index = current_index();
  return index < 0 ? cudaErrorNoDevice : device(index).error();
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT int simcudaIsInitialized() { return initialized(); }
SIMCUDA_EXPORT void simcudaPrintTrace() { print_trace(); }
