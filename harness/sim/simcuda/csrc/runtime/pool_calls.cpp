// The functions of CUDA about pools and stream-ordered memory.

#include <cuda_runtime_api.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "call.h"
#include "capture.h"
#include "context.h"
#include "graph_memory.h"
#include "handles.h"
#include "pools.h"

namespace simcuda {

namespace {

// Leaked, as memory may be given back until the very end of the process.
Handles<Pool>& pools() {
  static auto* const pools = new Handles<Pool>;
  return *pools;
}

// By the devices' indices: their default pools, those they use now, and all.
struct Table {
  std::mutex mutex;
  std::vector<std::shared_ptr<Pool>> defaults{static_cast<std::size_t>(device_count())};
  std::vector<std::shared_ptr<Pool>> current{static_cast<std::size_t>(device_count())};
  std::vector<std::weak_ptr<Pool>> all;
};
Table& table() {
  static auto* const table = new Table;
  return *table;
}

// Most programs use no pool: what they wait for costs them nothing more.
std::atomic<bool> any_used{false};

std::shared_ptr<Pool> make_pool(Device& device, std::size_t most) {
  auto pool = std::make_shared<Pool>(device, most);
  pools().add(pool);
  std::erase_if(table().all, [](const auto& each) { return each.expired(); });
  table().all.push_back(pool);
  return pool;
}

std::shared_ptr<Pool> current_pool(Device& device) {
  auto fallback = default_pool(device);
  const std::lock_guard lock(table().mutex);
  const auto& current = table().current.at(static_cast<std::size_t>(device.index));
  return current ? current : fallback;
}

template <typename Use>
void for_each_pool(Device& device, Use use) {
  std::vector<std::shared_ptr<Pool>> all;
  {
    const std::lock_guard lock(table().mutex);
    for (const auto& each : table().all) {
      if (auto pool = each.lock(); pool && &pool->device() == &device) all.push_back(std::move(pool));
    }
  }
  for (const auto& pool : all) use(*pool);
}

cudaError_t allocate(void** address, std::size_t bytes, std::shared_ptr<Pool> pool, Stream& stream) {
  check(address != nullptr);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (capture_of(stream)) return capture_allocation(stream, pool ? pool->device() : stream.device(), address, bytes);
  if (!pool) pool = current_pool(stream.device());
  wake(pool->device());
  any_used.store(true, std::memory_order_relaxed);
  *address = pool->allocate(bytes, stream);
  return cudaSuccess;
}

}  // namespace

std::shared_ptr<Pool> find_pool(cudaMemPool_t handle) {
  auto pool = pools().find(handle);
  check(pool != nullptr);
  return pool;
}

std::shared_ptr<Pool> default_pool(Device& device) {
  const std::lock_guard lock(table().mutex);
  auto& pool = table().defaults.at(static_cast<std::size_t>(device.index));
  if (!pool) pool = make_pool(device, 0);
  return pool;
}

void release_after_wait(Device& device) {
  if (!any_used.load(std::memory_order_relaxed)) return;
  for_each_pool(device, [](Pool& pool) { pool.trim_to_threshold(); });
}

void trim_pools(Device& device) {
  for_each_pool(device, [](Pool& pool) { pool.trim(0); });
}

}  // namespace simcuda

using namespace simcuda;
using Kind = Allocation::Kind;

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
    const std::lock_guard lock(table().mutex);
    *pool = make_pool(device, props->maxSize)->handle();
  });
}

// What was allocated from it stays, and the pool with it.
SIMCUDA_EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  SIMCUDA_CALL(device, {
    const auto pool = find_pool(handle);
    const auto index = static_cast<std::size_t>(pool->device().index);
    {
      const std::lock_guard lock(table().mutex);
      check(table().defaults.at(index) != pool);
      if (auto& current = table().current.at(index); current == pool) current.reset();
    }
    pools().remove(handle);
  });
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
    const std::lock_guard lock(table().mutex);
    table().current.at(static_cast<std::size_t>(index)) = pool;
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

// Pools are cut from one file for each device: none of them can be given to another process by itself.
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
