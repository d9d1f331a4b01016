// The driver's initialisation, its devices, and their contexts. CUDA Driver API, "Initialization" to "Context
// Management".

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "driver.h"
#include "green.h"
#include "simcuda_machine.h"

namespace simcuda::driver {

namespace {

std::atomic<bool> ready_{false};

struct Context {
  std::atomic<int> retained{0};
};
Context contexts[machine::most_devices];

// Contexts that cuCtxCreate has made. They are other names of the device's primary context.
struct Made {
  int device;
};
std::mutex made_mutex;
std::vector<std::unique_ptr<Made>> made;

int device_of_made(CUcontext context) {
  const std::lock_guard lock(made_mutex);
  for (const auto& one : made) {
    if (one.get() == reinterpret_cast<Made*>(context)) return one->device;
  }
  return -1;
}

bool has_made(int device) {
  const std::lock_guard lock(made_mutex);
  return std::any_of(made.begin(), made.end(), [&](const auto& one) { return one->device == device; });
}

// This thread's contexts below the current one (cuCtxPushCurrent). The current context is the runtime's current device.
thread_local std::vector<CUcontext> covered;
thread_local bool none = false;           // cuCtxSetCurrent(0) was called
thread_local CUcontext chosen = nullptr;  // the context that was set, while its device is the current one

bool valid(CUdevice device) { return device >= 0 && device < simcudaDeviceCount(); }

// Whether somebody keeps the device's context: the driver's callers, or the program through the runtime.
bool alive(int device) {
  return simcudaHasContext(device) && (simcudaRuntimeUsed() || contexts[device].retained > 0 || has_made(device));
}

// Returns the device of a primary context, a green one, or one that was made.
int device_of_any(CUcontext context) {
  int device = device_of(context);
  if (device < 0) device = device_of_green(context);
  return device < 0 ? device_of_made(context) : device;
}

// Ends a context that nobody keeps any more.
void end_if_dead(int device) {
  if (simcudaHasContext(device) && !alive(device)) simcudaResetDevice(device);
}

CUresult set_current(CUcontext context) {
  none = context == nullptr;
  if (none) return CUDA_SUCCESS;
  const int device = device_of_any(context);
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  chosen = context;
  return result(cudaSetDevice(device));
}

}  // namespace

CUcontext current() {
  const int device = simcudaCurrentDevice();
  if (none || device < 0 || !alive(device)) return nullptr;
  if (chosen != nullptr && device_of_any(chosen) == device) return chosen;
  return simcudaRuntimeUsed() ? context_of(device) : nullptr;
}

bool ready() { return ready_ || simcudaIsInitialized(); }
void set_ready() { ready_ = true; }

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(&contexts[device]); }
int device_of(CUcontext context) {
  const auto* const place = reinterpret_cast<const Context*>(context);
  return place >= contexts && place < contexts + simcudaDeviceCount() ? static_cast<int>(place - contexts) : -1;
}

}  // namespace simcuda::driver

using namespace simcuda::driver;

DRIVER_API CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  int count = 0;
  const CUresult error = result(cudaGetDeviceCount(&count));
  if (error == CUDA_SUCCESS) set_ready();
  return error;
}

DRIVER_API CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

DRIVER_API CUresult cuDeviceGetCount(int* to) { FORWARD(cudaGetDeviceCount(to)); }

DRIVER_API CUresult cuDeviceGet(CUdevice* to, int index) {
  DRIVER_CALL({
    if (to == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(index)) return CUDA_ERROR_INVALID_DEVICE;
    *to = index;
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  DRIVER_CALL({
    if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::snprintf(name, static_cast<std::size_t>(length), "%s", simcuda::machine::name);
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  DRIVER_CALL({
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    cudaDeviceProp properties;
    if (const auto error = cudaGetDeviceProperties(&properties, device)) return result(error);
    std::memcpy(uuid->bytes, properties.uuid.bytes, sizeof uuid->bytes);
    return CUDA_SUCCESS;
  });
}
DRIVER_API CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

// Attributes have the same numbers in the runtime, which knows fewer of them.
DRIVER_API CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  DRIVER_CALL({
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
      case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
        *value = 1;
        return CUDA_SUCCESS;
      case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED:
        *value = 0;
        return CUDA_SUCCESS;
      default:
        return result(cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device));
    }
  });
}

DRIVER_API CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  DRIVER_CALL({
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    cudaDeviceProp properties;
    if (const auto error = cudaGetDeviceProperties(&properties, device)) return result(error);
    *bytes = properties.totalGlobalMem;
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  DRIVER_CALL({
    if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *major = simcuda::machine::compute_major;
    *minor = simcuda::machine::compute_minor;
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  FORWARD(cudaDeviceGetPCIBusId(id, length, device));
}
DRIVER_API CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  FORWARD(cudaDeviceGetByPCIBusId(device, id));
}
DRIVER_API CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  FORWARD(cudaDeviceCanAccessPeer(can, device, peer));
}
DRIVER_API CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
  FORWARD(cudaDeviceGetP2PAttribute(value, static_cast<cudaDeviceP2PAttr>(attribute), from, to));
}

DRIVER_API CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  DRIVER_CALL({
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (const auto error = cudaInitDevice(device, 0, 0)) return result(error);
    ++contexts[device].retained;
    *context = context_of(device);
    return CUDA_SUCCESS;
  });
}

// A runtime that the program uses retains the context until the process ends: this release is then never the last one.
DRIVER_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  DRIVER_CALL({
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (contexts[device].retained.load() == 0) return CUDA_ERROR_INVALID_CONTEXT;
    --contexts[device].retained;
    end_if_dead(device);
    return CUDA_SUCCESS;
  });
}
DRIVER_API CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }

DRIVER_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  DRIVER_CALL({
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    return simcudaResetDevice(device);
  });
}
DRIVER_API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

// A context that is made shares streams and memory with the device's primary context.
DRIVER_API CUresult cuCtxCreate_v2(CUcontext* context, unsigned, CUdevice device) {
  DRIVER_CALL({
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    if (const auto error = cudaInitDevice(device, 0, 0)) return result(error);
    const CUcontext before = current();
    {
      const std::lock_guard lock(made_mutex);
      made.push_back(std::make_unique<Made>(Made{device}));
      *context = reinterpret_cast<CUcontext>(made.back().get());
    }
    covered.push_back(before);
    return set_current(*context);
  });
}
// The parameters are about green contexts, and shares of the processors.
DRIVER_API CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam*, int count, unsigned flags,
                                   CUdevice device) {
  return count != 0 ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : cuCtxCreate_v2(context, flags, device);
}
#if CUDA_VERSION < 12050
using CUctxCreateParams = void;
#endif
DRIVER_API CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters, unsigned flags, CUdevice device) {
  return parameters != nullptr ? CUDA_ERROR_NOT_SUPPORTED : cuCtxCreate_v2(context, flags, device);
}
DRIVER_API CUresult cuCtxDestroy_v2(CUcontext context) {
  DRIVER_CALL({
    const int device = device_of_made(context);
    if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (current() == context) {
      const CUcontext below = covered.empty() ? nullptr : covered.back();
      if (!covered.empty()) covered.pop_back();
      set_current(below);
    }
    {
      const std::lock_guard lock(made_mutex);
      std::erase_if(made, [&](const auto& one) { return one.get() == reinterpret_cast<Made*>(context); });
    }
    end_if_dead(device);
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  DRIVER_CALL({
    if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = alive(device);
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned) {
  DRIVER_CALL({ return valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE; });
}
DRIVER_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

// Modules are loaded at their first use, which is CUDA's default.
DRIVER_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  DRIVER_CALL({
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
  });
}

// For profilers from outside, of which there are none.
DRIVER_API CUresult cuProfilerStart() { IN_CONTEXT(cudaSuccess); }
DRIVER_API CUresult cuProfilerStop() { IN_CONTEXT(cudaSuccess); }

DRIVER_API CUresult cuCtxGetCurrent(CUcontext* context) {
  DRIVER_CALL({
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *context = current();
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuCtxSetCurrent(CUcontext context) {
  DRIVER_CALL({ return set_current(context); });
}

DRIVER_API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  DRIVER_CALL({
    if (device_of_any(context) < 0) return CUDA_ERROR_INVALID_CONTEXT;
    const CUcontext before = current();
    if (const CUresult error = set_current(context)) return error;
    covered.push_back(before);
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  DRIVER_CALL({
    const CUcontext top = current();
    if (top == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = top;
    const CUcontext below = covered.empty() ? nullptr : covered.back();
    if (!covered.empty()) covered.pop_back();
    return set_current(below);
  });
}

DRIVER_API CUresult cuCtxGetDevice(CUdevice* device) {
  DRIVER_CALL({
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUcontext context = current();
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *device = device_of_any(context);
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuCtxGetFlags(unsigned* flags) { IN_CONTEXT(cudaGetDeviceFlags(flags)); }

DRIVER_API CUresult cuCtxGetApiVersion(CUcontext, unsigned* version) {
  DRIVER_CALL({
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  DRIVER_CALL({
    const int device = device_of_any(context == nullptr ? current() : context);
    if (device < 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = static_cast<unsigned long long>(device) + 1;
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuCtxSynchronize() { IN_CONTEXT(cudaDeviceSynchronize()); }

DRIVER_API CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
  IN_CONTEXT(cudaDeviceGetLimit(value, static_cast<cudaLimit>(limit)));
}
DRIVER_API CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  IN_CONTEXT(cudaDeviceSetLimit(static_cast<cudaLimit>(limit), value));
}
DRIVER_API CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  IN_CONTEXT(cudaDeviceGetStreamPriorityRange(least, greatest));
}
DRIVER_API CUresult cuCtxGetCacheConfig(CUfunc_cache* config) {
  IN_CONTEXT(cudaDeviceGetCacheConfig(reinterpret_cast<cudaFuncCache*>(config)));
}
DRIVER_API CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  IN_CONTEXT(cudaDeviceSetCacheConfig(static_cast<cudaFuncCache>(config)));
}
// `peer` is the context of another device. The runtime only needs the device's number.
DRIVER_API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  DRIVER_CALL({
    const int device = device_of(peer);
    return device < 0 ? CUDA_ERROR_INVALID_CONTEXT : result(cudaDeviceEnablePeerAccess(device, flags));
  });
}
DRIVER_API CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  DRIVER_CALL({
    const int device = device_of(peer);
    return device < 0 ? CUDA_ERROR_INVALID_CONTEXT : result(cudaDeviceDisablePeerAccess(device));
  });
}
