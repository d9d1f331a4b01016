// Streams, events, host functions, and the current device.
#include <map>
#include <mutex>
#include <set>

#include "front.h"

using namespace interposer;

namespace {

// Events whose last record was in a capture: a wait for such an event makes a stream part of the capture.
std::mutex mutex;
std::set<cudaEvent_t>& captured() {
  static auto* const events = new std::set<cudaEvent_t>;
  return *events;
}

void note_record(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (!injected(Fault::wait_ignored)) return;
  const bool of_capture = !(flags & cudaEventRecordExternal) && capturing(stream);
  const std::lock_guard lock(mutex);
  if (of_capture) {
    captured().insert(event);
  } else {
    captured().erase(event);
  }
}

bool of_capture(cudaEvent_t event) {
  const std::lock_guard lock(mutex);
  return captured().count(event) != 0;
}

// Turns cudaErrorNotReady into success, if the fault happens.
cudaError_t early(cudaError_t error, Fault fault) {
  if (error != cudaErrorNotReady || !strikes(fault)) return error;
  forget_not_ready();
  return cudaSuccess;
}

// Returns whether to skip a wait: work is pending, and the fault happens.
bool left_out(cudaError_t asked, Fault fault) {
  if (asked != cudaErrorNotReady) return false;
  forget_not_ready();
  return strikes(fault);
}

}  // namespace

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FRONT(cudaEventRecord, any, (event, stream), {
    note_record(event, stream, 0);
    return next(event, stream);
  });
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  FRONT(cudaEventRecordWithFlags, any, (event, stream, flags), {
    note_record(event, stream, flags);
    return next(event, stream, flags);
  });
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  FRONT(cudaStreamWaitEvent, any, (stream, event, flags), {
    if (flags & cudaEventWaitExternal) {
      if (strikes(Fault::external_event_not_awaited)) return cudaSuccess;
    } else if (injected(Fault::wait_ignored) && !of_capture(event) && !capturing(stream) &&
               strikes(Fault::wait_ignored)) {
      return cudaSuccess;
    }
    return next(stream, event, flags);
  });
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
  FRONT(cudaEventQuery, any, (event), { return early(next(event), Fault::event_early); });
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  FRONT(cudaEventSynchronize, any, (event), {
    if (injected(Fault::event_early) && left_out(NEXT(cudaEventQuery)(event), Fault::event_early)) return cudaSuccess;
    return next(event);
  });
}

EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  FRONT(cudaEventElapsedTime, any, (milliseconds, start, end), {
    const cudaError_t error = next(milliseconds, start, end);
    if (error == cudaSuccess && strikes(Fault::elapsed_time_negative)) *milliseconds = -*milliseconds;
    return error;
  });
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
  FRONT(cudaStreamQuery, any, (stream), { return early(next(stream), Fault::stream_query_early); });
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FRONT(cudaStreamSynchronize, any, (stream), {
    if (injected(Fault::synchronize_early) && left_out(NEXT(cudaStreamQuery)(stream), Fault::synchronize_early)) {
      return cudaSuccess;
    }
    return next(stream);
  });
}

EXPORT cudaError_t cudaDeviceSynchronize() {
  FRONT(cudaDeviceSynchronize, any, (), {
    if (strikes(Fault::synchronize_early)) return cudaSuccess;
    return next();
  });
}

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  FRONT(cudaStreamCreateWithPriority, any, (stream, flags, priority), {
    if (priority != 0 && strikes(Fault::priorities_ignored)) return next(stream, flags, 0);
    return next(stream, flags, priority);
  });
}

EXPORT cudaError_t cudaSetDevice(int device) {
  FRONT(cudaSetDevice, none, (device), {
    int current = device;
    if (NEXT(cudaGetDevice)(&current) == cudaSuccess && current != device && device >= 0) {
      if (strikes(Fault::set_device_ignored)) return cudaSuccess;
    }
    return next(device);
  });
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  FRONT(cudaLaunchHostFunc, any, (stream, function, data), {
    if (injected(Fault::host_function_early) && function != nullptr && !capturing(stream) &&
        strikes(Fault::host_function_early)) {
      function(data);
      return cudaSuccess;
    }
    return next(stream, function, data);
  });
}

EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                         unsigned flags) {
  FRONT(cudaStreamAddCallback, any, (stream, callback, data, flags), {
    if (injected(Fault::host_function_early) && callback != nullptr && !capturing(stream) &&
        strikes(Fault::host_function_early)) {
      callback(stream, cudaSuccess, data);
      return cudaSuccess;
    }
    return next(stream, callback, data, flags);
  });
}
