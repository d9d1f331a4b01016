// Functions of the interface that torch may ask for and that some headers of NCCL do not have.

#include "newer.h"

#include <cstddef>

using namespace simcuda::nccl;

#define NCCL_EXPORT extern "C" __attribute__((visibility("default")))

// Its memory is that of the host: there is nothing to give back, and nothing to count.
NCCL_EXPORT int ncclCommSuspend(void* communicator, int) { return suspend(communicator, true); }
NCCL_EXPORT int ncclCommResume(void* communicator) { return suspend(communicator, false); }
NCCL_EXPORT int ncclCommMemStats(void* communicator, int which, std::uint64_t* value) {
  return statistic(communicator, which, value);
}

// For kernels of a GPU, and messages of one side.
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
