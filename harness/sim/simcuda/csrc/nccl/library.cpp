// The library: its version and errors, memory and its registration, and unsupported functions.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "communicator.h"
#include "cuda.h"
#include "group.h"
#include "newer.h"

using namespace simcuda::nccl;

namespace {

#define SIMNCCL_TEXT(a, b, c) "NCCL version " #a "." #b "." #c "+simulated (no GPU)"
#define SIMNCCL_VERSION_TEXT(a, b, c) SIMNCCL_TEXT(a, b, c)
constexpr const char* version_text = SIMNCCL_VERSION_TEXT(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);

// Memory that the program has registered. Registration does not make anything faster here.
struct Registered {
  const void* address;
  std::size_t size;
};
std::mutex registered_mutex;
std::set<Registered*>& registered() {
  static auto* const registered = new std::set<Registered*>;
  return *registered;
}

void* enter(ncclComm_t handle, const void* address, std::size_t size) {
  Communicator::find(handle)->check_ready();
  check(address != nullptr && size > 0, "the buffer is empty");
  const std::lock_guard lock(registered_mutex);
  auto* const made = new Registered{address, size};
  registered().insert(made);
  return made;
}

void leave(ncclComm_t handle, void* entry) {
  Communicator::find(handle);
  const std::lock_guard lock(registered_mutex);
  auto* const found = static_cast<Registered*>(entry);
  check(registered().erase(found) != 0, "the handle is none of a registered buffer");
  delete found;
}

// With NCCL_DEBUG, NCCL prints its version with the first communicator. This library prints it when it is loaded.
const bool version_printed = [] {
  if (const char* const level = std::getenv("NCCL_DEBUG"); level != nullptr && std::strcmp(level, "VERSION") == 0) {
    std::puts(version_text);
  }
  return true;
}();

}  // namespace

namespace simcuda::nccl {

int refuse(const char* function) {
  return call([&] { check(false, std::string(function) + " is not simulated: it needs a GPU", ncclInvalidUsage); });
}

int suspend(void* handle, bool suspended) {
  return call([&] {
    const auto communicator = Communicator::find(static_cast<ncclComm_t>(handle));
    if (suspended) {
      communicator->check_ready();
      communicator->drain();
    }
    communicator->suspend(suspended);
  });
}

int statistic(void* handle, int which, std::uint64_t* value) {
  return call([&] {
    check(value != nullptr && which >= 0 && which <= 3, "ncclCommMemStats : invalid argument");
    *value = which == 1 && Communicator::find(static_cast<ncclComm_t>(handle))->suspended();
  });
}

}  // namespace simcuda::nccl

NCCL_EXPORT const char* simncclVersionText() { return version_text; }

NCCL_EXPORT ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return ncclInvalidArgument;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

NCCL_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

NCCL_EXPORT const char* ncclGetLastError(ncclComm_t) { return last_error(); }

NCCL_EXPORT ncclResult_t ncclMemAlloc(void** address, size_t size) {
  return call([&] {
    check(address != nullptr && size > 0, "ncclMemAlloc : invalid argument");
    check_cuda(cudaMalloc(address, size));
  });
}

NCCL_EXPORT ncclResult_t ncclMemFree(void* address) {
  return call([&] { check_cuda(cudaFree(address)); });
}

NCCL_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t communicator, void* buffer, size_t size, void** handle) {
  return call([&] {
    check(handle != nullptr, "handle argument is NULL");
    *handle = enter(communicator, buffer, size);
  });
}

NCCL_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t communicator, void* handle) {
  return call([&] { leave(communicator, handle); });
}

NCCL_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t communicator, void* buffer, size_t size,
                                                ncclWindow_t* window, int) {
  return call([&] {
    check(window != nullptr, "win argument is NULL");
    *window = static_cast<ncclWindow_t>(enter(communicator, buffer, size));
  });
}

NCCL_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t communicator, ncclWindow_t window) {
  return call([&] { leave(communicator, window); });
}
