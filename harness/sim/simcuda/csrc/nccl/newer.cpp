// Functions that torch may look up, and that some versions of NCCL's header lack.

#include "newer.h"

#include <cstddef>

using namespace simcuda::nccl;

#define NCCL_EXPORT extern "C" __attribute__((visibility("default")))

// The communicator's memory is in the host, so there is nothing to free or to count.
NCCL_EXPORT int ncclCommSuspend(void* communicator, int) { return suspend(communicator, true); }
NCCL_EXPORT int ncclCommResume(void* communicator) { return suspend(communicator, false); }
NCCL_EXPORT int ncclCommMemStats(void* communicator, int which, std::uint64_t* value) {
  return statistic(communicator, which, value);
}

// For kernels on a GPU, and one-sided communication.
NCCL_EXPORT int ncclDevCommCreate(void*, const void*, void*) { return refuse("ncclDevCommCreate"); }
NCCL_EXPORT int ncclDevCommDestroy(void*, const void*) { return refuse("ncclDevCommDestroy"); }
NCCL_EXPORT int ncclGetPeerDevicePointer(void*, std::size_t, int, void**) { return refuse("ncclGetPeerDevicePointer"); }
NCCL_EXPORT int ncclGetLsaMultimemDevicePointer(void*, std::size_t, void**) {
  return refuse("ncclGetLsaMultimemDevicePointer");
}
NCCL_EXPORT int ncclPutSignal(const void*, std::size_t, int, int, void*, std::size_t, int, int, unsigned, void*,
                              void*) {
  return refuse("ncclPutSignal");
}
NCCL_EXPORT int ncclSignal(int, int, int, unsigned, void*, void*) { return refuse("ncclSignal"); }
NCCL_EXPORT int ncclWaitSignal(int, void*, void*, void*) { return refuse("ncclWaitSignal"); }
