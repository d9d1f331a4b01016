// The interface: memory pools and stream-ordered memory.

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "allocations.h"
#include "call.h"
#include "capture.h"
#include "context.h"
#include "graph_memory.h"
#include "pools.h"

using namespace simcuda;
using Kind = Allocation::Kind;

namespace {

cudaError_t allocate(void** address, std::size_t bytes, std::shared_ptr<Pool> pool, Stream& stream) {
  check(address != nullptr);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (capture_of(stream)) return capture_allocation(stream, pool ? pool->device() : stream.device(), address, bytes);
  if (!pool) pool = current_pool(stream.device());
  wake(pool->device());
  *address = pool->allocate(bytes, stream);
  return cudaSuccess;
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t stream) {
  SIMCUDA_CALL(device, { return allocate(address, size, nullptr, *find_stream(stream)); });
}

SIMCUDA_EXPORT cudaError_t cudaMallocFromPoolAsync(void** address, size_t size, cudaMemPool_t pool,
                                                   cudaStream_t stream) {
  SIMCUDA_CALL(device, { return allocate(address, size, find_pool(pool), *find_stream(stream)); });
}

SIMCUDA_EXPORT cudaError_t cudaFreeAsync(void* address, cudaStream_t handle) {
  SIMCUDA_CALL(device, {
    if (address == nullptr) return cudaSuccess;
    const auto stream = find_stream(handle);
    if (capture_of(*stream)) return capture_free(*stream, address);
    if (const auto found = find_allocation(address); found && found->kind == Kind::graph && found->base == address) {
      free_graph_memory(*found);
      return cudaSuccess;
    }
    const auto allocation = remove_allocation(address, {Kind::pool});
    check(allocation.has_value());
    free_in_pool(*allocation, stream.get());
    return cudaSuccess;
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* props) {
  SIMCUDA_CALL(device, {
    check(pool != nullptr && props != nullptr && props->allocType == cudaMemAllocationTypePinned);
    check(props->location.type == cudaMemLocationTypeDevice);
    check(props->handleTypes == cudaMemHandleTypeNone, cudaErrorNotSupported);
    Device& device = simcuda::device(props->location.id);
    wake(device);
    *pool = create_pool(device, props->maxSize)->handle();
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  SIMCUDA_CALL(device, { destroy_pool(find_pool(handle)); });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int index) {
  SIMCUDA_CALL(driver, {
    check(pool != nullptr);
    *pool = default_pool(device(index))->handle();
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int index) {
  SIMCUDA_CALL(driver, {
    check(pool != nullptr);
    *pool = current_pool(device(index))->handle();
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceSetMemPool(int index, cudaMemPool_t handle) {
  SIMCUDA_CALL(driver, {
    Device& device = simcuda::device(index);
    const auto pool = find_pool(handle);
    check(&pool->device() == &device);
    set_current_pool(pool);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  SIMCUDA_CALL(driver, {
    check(value != nullptr);
    find_pool(pool)->attribute(which, value);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  SIMCUDA_CALL(driver, {
    check(value != nullptr);
    find_pool(pool)->set_attribute(which, value);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  SIMCUDA_CALL(driver, { find_pool(pool)->trim(keep); });
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* access, size_t count) {
  SIMCUDA_CALL(driver, {
    const auto pool = find_pool(handle);
    check(access != nullptr || count == 0);
    for (size_t i = 0; i < count; ++i) pool->set_access(access[i]);
  });
}

SIMCUDA_EXPORT cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool,
                                                cudaMemLocation* location) {
  SIMCUDA_CALL(driver, {
    check(flags != nullptr && location != nullptr && location->type == cudaMemLocationTypeDevice);
    *flags = find_pool(pool)->access(device(location->id).index);
  });
}

// Pools share one file per device, so a pool cannot be exported to another process by itself.
SIMCUDA_EXPORT cudaError_t cudaMemPoolExportToShareableHandle(void*, cudaMemPool_t pool, cudaMemAllocationHandleType,
                                                              unsigned) {
  SIMCUDA_CALL(driver, {
    find_pool(pool);
    return cudaErrorNotSupported;
  });
}
SIMCUDA_EXPORT cudaError_t cudaMemPoolImportFromShareableHandle(cudaMemPool_t*, void*, cudaMemAllocationHandleType,
                                                                unsigned) {
  SIMCUDA_CALL(driver, { return cudaErrorNotSupported; });
}
SIMCUDA_EXPORT cudaError_t cudaMemPoolExportPointer(cudaMemPoolPtrExportData*, void*) {
  SIMCUDA_CALL(driver, { return cudaErrorNotSupported; });
}
SIMCUDA_EXPORT cudaError_t cudaMemPoolImportPointer(void**, cudaMemPool_t pool, cudaMemPoolPtrExportData*) {
  SIMCUDA_CALL(driver, {
    find_pool(pool);
    return cudaErrorNotSupported;
  });
}
