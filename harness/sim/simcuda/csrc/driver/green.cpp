#include "green.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "driver.h"

namespace simcuda::driver {

namespace {

// From compute capability 9.0 on, multiprocessors are partitioned in steps of 8.
constexpr unsigned step = 8;
// The number of streams with a hardware queue of their own, unless CUDA_DEVICE_MAX_CONNECTIONS is set.
constexpr unsigned queues = 8;

struct Green {
  int device;
  unsigned multiprocessors;
};
// A resource descriptor. With 0 multiprocessors, its context has all multiprocessors of the device.
struct Description {
  unsigned multiprocessors = 0;
};

// Handles are addresses. Descriptors live until the process ends: the interface has no function that frees them.
struct State {
  std::mutex mutex;
  std::unordered_map<const void*, std::unique_ptr<Green>> contexts;
  std::unordered_map<const void*, std::unique_ptr<Description>> descriptions;
};
State& state() {
  static State* const state = new State;
  return *state;
}

// Returns null if the handle is unknown.
Green* find(const void* handle) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().contexts.find(handle);
  return found == state().contexts.end() ? nullptr : found->second.get();
}

CUdevResource resource_of(unsigned multiprocessors) {
  CUdevResource resource{};
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm.smCount = multiprocessors;
#if CUDA_VERSION >= 13000
  resource.sm.minSmPartitionSize = resource.sm.smCoscheduledAlignment = step;
#endif
  return resource;
}

cudaError_t count_multiprocessors(int device, unsigned* to) {
  int count = 0;
  const auto error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  *to = static_cast<unsigned>(count);
  return error;
}

// Sharing of queues only affects speed, so a configuration is checked and then has no effect.
bool is_queue_configuration([[maybe_unused]] CUdevResourceType type) {
#if CUDA_VERSION >= 13010
  return type == CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG;
#else
  return false;
#endif
}

CUdevResource queues_of([[maybe_unused]] int device) {
  CUdevResource resource{};
#if CUDA_VERSION >= 13010
  resource.type = CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG;
  resource.wqConfig.device = device;
  resource.wqConfig.wqConcurrencyLimit = queues;
  resource.wqConfig.sharingScope = CU_WORKQUEUE_SCOPE_DEVICE_CTX;
#endif
  return resource;
}

bool may_configure([[maybe_unused]] const CUdevResource& resource) {
#if CUDA_VERSION >= 13010
  const auto& wanted = resource.wqConfig;
  const bool known = wanted.sharingScope == CU_WORKQUEUE_SCOPE_DEVICE_CTX ||
                     wanted.sharingScope == CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED;
  return known && wanted.wqConcurrencyLimit >= 1 && wanted.wqConcurrencyLimit <= queues;
#else
  return false;
#endif
}

CUresult device_resource(int device, CUdevResource* resource, CUdevResourceType type) {
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  unsigned count = 0;
  if (const auto error = count_multiprocessors(device, &count)) return result(error);
  if (is_queue_configuration(type)) {
    *resource = queues_of(device);
    return CUDA_SUCCESS;
  }
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = resource_of(count);
  return CUDA_SUCCESS;
}

CUresult resource_of(const Green& green, CUdevResource* resource, CUdevResourceType type) {
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = resource_of(green.multiprocessors);
  return CUDA_SUCCESS;
}

}  // namespace

int device_of_green(CUcontext context) {
  const Green* const green = find(context);
  return green == nullptr ? -1 : green->device;
}

}  // namespace simcuda::driver

using namespace simcuda::driver;

DRIVER_API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource* resource, CUdevResourceType type) {
  DRIVER_CALL({ return device_resource(device, resource, type); });
}

DRIVER_API CUresult cuCtxGetDevResource(CUcontext context, CUdevResource* resource, CUdevResourceType type) {
  DRIVER_CALL({
    if (const Green* const green = find(context)) return resource_of(*green, resource, type);
    const int device = device_of(context);
    return device < 0 ? CUDA_ERROR_INVALID_CONTEXT : device_resource(device, resource, type);
  });
}

DRIVER_API CUresult cuGreenCtxGetDevResource(CUgreenCtx context, CUdevResource* resource, CUdevResourceType type) {
  DRIVER_CALL({
    const Green* const green = find(context);
    return green == nullptr ? CUDA_ERROR_INVALID_VALUE : resource_of(*green, resource, type);
  });
}

DRIVER_API CUresult cuDevSmResourceSplitByCount(CUdevResource* groups, unsigned* count, const CUdevResource* input,
                                                CUdevResource* rest, unsigned, unsigned least) {
  DRIVER_CALL({
    if (count == nullptr || input == nullptr || *count == 0) return CUDA_ERROR_INVALID_VALUE;
    if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    const unsigned each = std::max(step, (least + step - 1) / step * step), all = input->sm.smCount;
    if (least > all || each > all) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    const unsigned made = groups == nullptr ? all / each : std::min(*count, all / each);
    for (unsigned i = 0; groups != nullptr && i < made; ++i) groups[i] = resource_of(each);
    *count = made;
    if (rest != nullptr) *rest = resource_of(all - made * each);
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* description, CUdevResource* resources,
                                              unsigned count) {
  DRIVER_CALL({
    if (description == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_unique<Description>();
    for (unsigned i = 0; i < count; ++i) {
      if (is_queue_configuration(resources[i].type)) {
        if (!may_configure(resources[i])) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        continue;
      }
      if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
      made->multiprocessors += resources[i].sm.smCount;
    }
    *description = reinterpret_cast<CUdevResourceDesc>(made.get());
    const std::lock_guard lock(state().mutex);
    state().descriptions[made.get()] = std::move(made);
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuGreenCtxCreate(CUgreenCtx* context, CUdevResourceDesc description, CUdevice device,
                                     unsigned flags) {
  DRIVER_CALL({
    if (context == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    if (const auto error = cudaInitDevice(device, 0, 0)) return result(error);
    const std::lock_guard lock(state().mutex);
    const auto found = state().descriptions.find(description);
    if (found == state().descriptions.end()) return CUDA_ERROR_INVALID_VALUE;
    auto green = std::make_unique<Green>(Green{device, found->second->multiprocessors});
    if (green->multiprocessors == 0) {
      if (const auto error = count_multiprocessors(device, &green->multiprocessors)) return result(error);
    }
    *context = reinterpret_cast<CUgreenCtx>(green.get());
    state().contexts[green.get()] = std::move(green);
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuGreenCtxDestroy(CUgreenCtx context) {
  DRIVER_CALL({
    const std::lock_guard lock(state().mutex);
    return state().contexts.erase(context) == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  });
}

DRIVER_API CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  DRIVER_CALL({
    if (context == nullptr || find(green) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *context = reinterpret_cast<CUcontext>(green);
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx context, unsigned flags, int priority) {
  DRIVER_CALL({
    const Green* const green = find(context);
    if (green == nullptr || stream == nullptr || !(flags & CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
    int before = 0;
    if (const auto error = cudaGetDevice(&before)) return result(error);
    if (const auto error = cudaSetDevice(green->device)) return result(error);
    const auto error = cudaStreamCreateWithPriority(stream, flags, priority);
    cudaSetDevice(before);
    return result(error);
  });
}
