// Attributes of addresses, and memory advice.

#include <cuda_runtime_api.h>

#include "allocations.h"
#include "call.h"
#include "context.h"
#include "device.h"

using namespace simcuda;

namespace {

// Advice applies to managed memory, and to system memory on devices that can read it, which these cannot.
void check_managed(const void* address, std::size_t bytes) {
  check(address != nullptr && bytes != 0);
  const auto found = find_allocation(address);
  check(found && found->kind == Allocation::Kind::managed);
  check(found->contains(static_cast<const char*>(address) + bytes - 1));
}

#if CUDART_VERSION >= 13000
void check_location(const cudaMemLocation& location) {
  if (location.type == cudaMemLocationTypeDevice) {
    check(location.id >= 0 && location.id < device_count(), cudaErrorInvalidDevice);
  } else {
    check(location.type == cudaMemLocationTypeHost || location.type == cudaMemLocationTypeHostNuma ||
          location.type == cudaMemLocationTypeHostNumaCurrent);
  }
}
#else
void check_place(int device) {
  check(device == cudaCpuDeviceId || (device >= 0 && device < device_count()), cudaErrorInvalidDevice);
}
#endif

}  // namespace

// Unregistered memory is not an error: the type is cudaMemoryTypeUnregistered.
SIMCUDA_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  SIMCUDA_CALL(driver, {
    check(attributes != nullptr);
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    const auto found = find_allocation(address);
    if (!found) return;
    attributes->type = found->type();
    attributes->device = found->device->index;
    attributes->devicePointer = const_cast<void*>(address);
    if (!found->on_device()) attributes->hostPointer = const_cast<void*>(address);
  });
}

#if CUDART_VERSION >= 13000

SIMCUDA_EXPORT cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice,
                                         cudaMemLocation location) {
  SIMCUDA_CALL(device, {
    check(advice >= cudaMemAdviseSetReadMostly && advice <= cudaMemAdviseUnsetAccessedBy);
    if (advice != cudaMemAdviseSetReadMostly && advice != cudaMemAdviseUnsetReadMostly) check_location(location);
    check_managed(address, bytes);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, cudaMemLocation location,
                                                unsigned flags, cudaStream_t stream) {
  SIMCUDA_CALL(device, {
    check(flags == 0);
    check_location(location);
    find_stream(stream);
    check_managed(address, bytes);
  });
}

#else

SIMCUDA_EXPORT cudaError_t cudaMemAdvise(const void* address, size_t bytes, cudaMemoryAdvise advice, int device) {
  SIMCUDA_CALL(device, {
    check(advice >= cudaMemAdviseSetReadMostly && advice <= cudaMemAdviseUnsetAccessedBy);
    if (advice != cudaMemAdviseSetReadMostly && advice != cudaMemAdviseUnsetReadMostly) check_place(device);
    check_managed(address, bytes);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes, int device, cudaStream_t stream) {
  SIMCUDA_CALL(device, {
    check_place(device);
    find_stream(stream);
    check_managed(address, bytes);
  });
}

#endif

SIMCUDA_EXPORT cudaError_t cudaMemRangeGetAttribute(void* value, size_t size, cudaMemRangeAttribute which,
                                                    const void* address, size_t bytes) {
  SIMCUDA_CALL(device, {
    check(value != nullptr && size >= sizeof(int) && size % sizeof(int) == 0);
    check_managed(address, bytes);
    auto* const numbers = static_cast<int*>(value);
    switch (which) {
      case cudaMemRangeAttributeReadMostly:
        *numbers = 0;
        break;
      case cudaMemRangeAttributePreferredLocation:
      case cudaMemRangeAttributeLastPrefetchLocation:
        *numbers = cudaInvalidDeviceId;
        break;
      case cudaMemRangeAttributeAccessedBy:
        for (size_t i = 0; i < size / sizeof(int); ++i) numbers[i] = cudaInvalidDeviceId;
        break;
      default:
        throw Error(cudaErrorInvalidValue);
    }
  });
}
