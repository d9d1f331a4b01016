// The interface: devices, and the process.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "../include/simcuda.h"
#include "../include/simcuda_machine.h"
#include "../include/simcuda_shared.h"
#include "call.h"
#include "capture.h"
#include "context.h"
#include "device.h"
#include "ipc_event.h"
#include "ledger.h"
#include "pools.h"
#include "process.h"
#include "properties.h"
#include "stream.h"
#include "trace.h"

using namespace simcuda;

namespace {

constexpr unsigned settable_flags =
    cudaDeviceScheduleMask | cudaDeviceMapHost | cudaDeviceLmemResizeToMax | cudaDeviceSyncMemops;

std::atomic<unsigned> device_flags[machine::most_devices];

std::mutex limits_mutex;
std::map<cudaLimit, size_t>& limits() {
  static auto* const limits = new std::map<cudaLimit, size_t>{
      {cudaLimitStackSize, 1024},           {cudaLimitPrintfFifoSize, 7340032},
      {cudaLimitMallocHeapSize, 8388608},   {cudaLimitDevRuntimePendingLaunchCount, 2048},
      {cudaLimitMaxL2FetchGranularity, 64}, {cudaLimitPersistingL2CacheSize, 0},
  };
  return *limits;
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  SIMCUDA_CALL(driver, {
    check(count != nullptr);
    *count = device_count();
    return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}

SIMCUDA_EXPORT cudaError_t cudaGetDevice(int* index) {
  SIMCUDA_CALL(driver, {
    check(index != nullptr);
    *index = current_device().index;
  });
}

SIMCUDA_EXPORT cudaError_t cudaSetDevice(int index) {
  SIMCUDA_CALL(driver, {
    check(device_count() > 0, cudaErrorNoDevice);
    // "Starting with CUDA 12.0, this call will immediately initialize the primary context on the specified device."
    wake(device(index));
    set_current_index(index);
    return device(index).error();
  });
}

SIMCUDA_EXPORT cudaError_t cudaInitDevice(int index, unsigned, unsigned) {
  SIMCUDA_CALL(driver, {
    check(device_count() > 0, cudaErrorNoDevice);
    wake(device(index));
    ledger::open_context(device(index).number);  // again, after a reset
    note_use();
  });
}

SIMCUDA_EXPORT cudaError_t cudaSetValidDevices(int* list, int count) {
  SIMCUDA_CALL(driver, {
    check(list != nullptr || count == 0);
    for (int i = 0; i < count; ++i) device(list[i]);
    if (count > 0) set_current_index(list[0]);
  });
}

SIMCUDA_EXPORT cudaError_t cudaChooseDevice(int* index, const cudaDeviceProp* wanted) {
  SIMCUDA_CALL(driver, {
    check(index != nullptr && wanted != nullptr);
    *index = current_device().index;
  });
}

SIMCUDA_EXPORT cudaError_t cudaSetDeviceFlags(unsigned flags) {
  SIMCUDA_CALL(driver, {
    check((flags & ~settable_flags) == 0);
    const unsigned schedule = flags & cudaDeviceScheduleMask;
    check((schedule & (schedule - 1)) == 0);  // at most one of them
    device_flags[current_device().index] = flags;
  });
}

SIMCUDA_EXPORT cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  SIMCUDA_CALL(driver, {
    check(flags != nullptr);
    *flags = device_flags[current_device().index] | cudaDeviceMapHost;
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceSynchronize() {
  SIMCUDA_CALL(device, {
    Device& device = current_device();
    forbid_captured(device, "cudaDeviceSynchronize");
    forbid_unsafe("cudaDeviceSynchronize");
    wake(device);
    activity::describe_wait(SimcudaWait::device, device.index, simcuda_no_stream);
    drain(device);
    release_after_wait(device);
    return device.error();
  });
}

// The program's resources on the device stay valid. A sticky error stays, too, since CUDA does not promise that a
// failed context can be recreated in the same process.
SIMCUDA_EXPORT cudaError_t cudaDeviceReset() {
  SIMCUDA_CALL(driver, {
    Device& device = current_device();
    forbid_captured(device, "cudaDeviceReset");
    drain(device);
    return device.error();
  });
}

SIMCUDA_EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  SIMCUDA_CALL(nothing, {
    check(version != nullptr);
    *version = CUDART_VERSION;
  });
}

SIMCUDA_EXPORT cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

SIMCUDA_EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  SIMCUDA_CALL(driver, {
    check(properties != nullptr);
    *properties = properties_of(device(index));
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int index) {
  SIMCUDA_CALL(driver, {
    check(value != nullptr);
    *value = attribute_of(device(index), attribute);
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int index) {
  SIMCUDA_CALL(driver, {
    check(text != nullptr && length > 0);
    char whole[16];
    std::snprintf(whole, sizeof whole, "%04x:%02x:%02x.0", machine::pci_domain, machine::pci_bus(device(index).number),
                  machine::pci_device);
    check(static_cast<std::size_t>(length) > std::strlen(whole));
    std::strcpy(text, whole);
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int* index, const char* text) {
  SIMCUDA_CALL(driver, {
    check(index != nullptr && text != nullptr);
    unsigned domain = 0, bus = 0, place = 0, function = 0;
    const int found = std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &place, &function);
    if (found < 3) {
      domain = 0;
      check(std::sscanf(text, "%x:%x.%x", &bus, &place, &function) >= 2);
    }
    for (int i = 0; i < device_count(); ++i) {
      if (static_cast<int>(bus) != machine::pci_bus(device(i).number) || domain != machine::pci_domain) continue;
      *index = i;
      return;
    }
    throw Error(cudaErrorInvalidDevice);
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  SIMCUDA_CALL(device, {
    if (least) *least = lowest_priority;
    if (greatest) *greatest = highest_priority;
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int index, int peer) {
  SIMCUDA_CALL(driver, {
    check(can != nullptr);
    *can = &device(index) != &device(peer);
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  SIMCUDA_CALL(device, {
    check(flags == 0);
    wake(current_device());
    current_device().enable_peer(peer);
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  SIMCUDA_CALL(device, { current_device().disable_peer(peer); });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  SIMCUDA_CALL(driver, {
    check(value != nullptr);
    check(&device(from) != &device(to), cudaErrorInvalidDevice);
    switch (attribute) {
      case cudaDevP2PAttrPerformanceRank:
        *value = 0;
        return;
      case cudaDevP2PAttrAccessSupported:
      case cudaDevP2PAttrNativeAtomicSupported:
        *value = 1;
        return;
      case cudaDevP2PAttrCudaArrayAccessSupported:
        *value = 0;
        return;
      default:
        throw Error(cudaErrorInvalidValue);
    }
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  SIMCUDA_CALL(device, {
    const std::lock_guard lock(limits_mutex);
    const auto found = limits().find(limit);
    check(found != limits().end(), cudaErrorUnsupportedLimit);
    found->second = value;
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  SIMCUDA_CALL(device, {
    check(value != nullptr);
    const std::lock_guard lock(limits_mutex);
    const auto found = limits().find(limit);
    check(found != limits().end(), cudaErrorUnsupportedLimit);
    *value = found->second;
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  SIMCUDA_CALL(device, {
    check(config != nullptr);
    *config = cudaFuncCachePreferNone;
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { SIMCUDA_CALL(device, {}); }

SIMCUDA_EXPORT cudaError_t cudaCtxResetPersistingL2Cache() { SIMCUDA_CALL(device, {}); }

SIMCUDA_EXPORT cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget,
                                                              cudaFlushGPUDirectRDMAWritesScope) {
  SIMCUDA_CALL(device, {});
}

SIMCUDA_EXPORT cudaError_t cudaProfilerStart() { SIMCUDA_CALL(driver, {}); }

SIMCUDA_EXPORT cudaError_t cudaProfilerStop() { SIMCUDA_CALL(driver, {}); }

SIMCUDA_EXPORT void simcudaFailDevice(int index, int error, const char* why) {
  if (index >= 0 && index < device_count()) device(index).fail(static_cast<cudaError_t>(error), why);
}

SIMCUDA_EXPORT int simcudaHasContext(int index) {
  return initialized() && index >= 0 && index < device_count() && awake(device(index));
}

SIMCUDA_EXPORT int simcudaIsInitialized() { return initialized(); }
SIMCUDA_EXPORT void simcudaPrintTrace() { print_trace(); }

namespace {
std::atomic<int> other_threads{0};
}

SIMCUDA_EXPORT int simcudaThreadCount() {
  return initialized() ? pool().started() + watching_threads() + other_threads.load() : 0;
}
SIMCUDA_EXPORT void simcudaCountThread() { other_threads.fetch_add(1); }
