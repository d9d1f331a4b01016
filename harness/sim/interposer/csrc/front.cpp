#include "front.h"

#include <dlfcn.h>

#include <mutex>
#include <optional>
#include <set>
#include <string>

namespace interposer {

thread_local int Within::depth = 0;

namespace {

thread_local cudaError_t last = cudaSuccess;

struct Held {
  cudaStream_t stream;
  std::function<cudaError_t()> work;
};
std::mutex mutex;
std::optional<Held> held;
std::set<int>& lost_devices() {
  static auto* const devices = new std::set<int>;
  return *devices;
}
std::atomic<bool> any_lost{false};
std::atomic<int> returned_sticky{0};  // the sticky error that a call has returned, if any

constexpr cudaError_t sticky_errors[] = {
    cudaErrorIllegalAddress,     cudaErrorAssert,
    cudaErrorHardwareStackError, cudaErrorIllegalInstruction,
    cudaErrorMisalignedAddress,  cudaErrorInvalidAddressSpace,
    cudaErrorInvalidPc,          cudaErrorLaunchFailure,
};

bool is_sticky(cudaError_t error) {
  for (const cudaError_t each : sticky_errors) {
    if (each == error) return true;
  }
  return false;
}

// Lets a sticky error be returned only once, if that fault is injected.
cudaError_t without_sticky(cudaError_t error) {
  if (!injected(Fault::error_not_sticky) || !is_sticky(error)) return error;
  int none = 0;
  if (returned_sticky.compare_exchange_strong(none, error)) return error;
  return strikes(Fault::error_not_sticky) ? cudaSuccess : error;
}

}  // namespace

void* find_next(const char* name) {
  if (void* const found = dlsym(RTLD_NEXT, name)) return found;
  // Torch's own libraries may be in a scope that a search from here does not include.
  const std::string file = "libcudart.so." + std::to_string(CUDART_VERSION / 1000);
  void* const library = dlopen(file.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr ? nullptr : dlsym(library, name);
}

cudaError_t refuse(cudaError_t error) {
  last = error;
  return error;
}

void forget_not_ready() { NEXT(cudaGetLastError)(); }

cudaError_t reported(cudaError_t error) {
  if (error == cudaSuccess || error == cudaErrorNotReady) return error;
  error = without_sticky(error);
  if (error == cudaSuccess) return error;
  if (strikes(Fault::error_not_noted)) {
    NEXT(cudaGetLastError)();
    last = cudaSuccess;
  }
  if (strikes(Fault::error_code_wrong)) {
    if (last != cudaSuccess || NEXT(cudaGetLastError)() != cudaSuccess) last = cudaErrorUnknown;
    return cudaErrorUnknown;
  }
  return error;
}

cudaError_t lost() {
  if (!any_lost.load(std::memory_order_relaxed)) return cudaSuccess;
  int device = -1;
  if (NEXT(cudaGetDevice)(&device) != cudaSuccess) return cudaSuccess;
  const std::lock_guard lock(mutex);
  return lost_devices().count(device) ? without_sticky(cudaErrorLaunchFailure) : cudaSuccess;
}

void lose_device() {
  int device = 0;
  NEXT(cudaGetDevice)(&device);
  const std::lock_guard lock(mutex);
  lost_devices().insert(device);
  any_lost.store(true, std::memory_order_relaxed);
}

void hold(cudaStream_t stream, std::function<cudaError_t()> work) {
  const std::lock_guard lock(mutex);
  held = Held{stream, std::move(work)};
}

bool holds_for(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  return held && held->stream == stream;
}

cudaError_t release_held() {
  if (!injected(Fault::wrong_stream_order)) return cudaSuccess;
  std::function<cudaError_t()> work;
  {
    const std::lock_guard lock(mutex);
    if (!held) return cudaSuccess;
    work = std::move(held->work);
    held.reset();
  }
  return work();
}

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (NEXT(cudaStreamIsCapturing)(stream, &status) != cudaSuccess) {
    NEXT(cudaGetLastError)();  // the legacy stream, while another one captures: the call itself returns the error
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace interposer

using namespace interposer;

EXPORT cudaError_t cudaGetLastError() {
  const auto next = NEXT(cudaGetLastError);
  if (next == nullptr || Within::now() || !any_injected()) return next ? next() : cudaErrorUnknown;
  const Within within;
  if (const cudaError_t gone = lost(); gone != cudaSuccess) return gone;
  if (injected(Fault::error_not_cleared)) {
    const cudaError_t there = last != cudaSuccess ? last : NEXT(cudaPeekAtLastError)();
    if (there != cudaSuccess && strikes(Fault::error_not_cleared)) return there;
  }
  const cudaError_t error = next();
  const cudaError_t ours = last;
  last = cudaSuccess;
  return without_sticky(ours != cudaSuccess ? ours : error);
}

EXPORT cudaError_t cudaPeekAtLastError() {
  const auto next = NEXT(cudaPeekAtLastError);
  if (next == nullptr || Within::now() || !any_injected()) return next ? next() : cudaErrorUnknown;
  const Within within;
  if (const cudaError_t gone = lost(); gone != cudaSuccess) return gone;
  const cudaError_t error = last != cudaSuccess ? last : next();
  return without_sticky(error);
}
