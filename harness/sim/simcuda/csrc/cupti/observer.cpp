#include "observer.h"

#include <mutex>

#include "callbacks.h"
#include "clock.h"
#include "records.h"
#include "simcuda_activity.h"

namespace simcuda::cupti {

namespace {

void observe(const SimcudaActivity* activity) {
  add_record(*activity);
  call_back(*activity);
}

}  // namespace

CUptiResult observe_what_is_enabled(CUptiResult result) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const int calls = records_enabled() || call_callbacks_enabled() ? simcuda_observe_calls : 0;
  const int contexts = context_callbacks_enabled() ? simcuda_observe_contexts : 0;
  simcudaObserve(&observe, &now, calls | contexts);
  return result;
}

}  // namespace simcuda::cupti
