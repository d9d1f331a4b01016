// Memory of devices: allocations, pools, and memory of other processes.
#include <dlfcn.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>

#include "front.h"

using namespace interposer;

namespace {

struct Block {
  std::size_t bytes;
  int device;
  int holders;  // how often it was allocated and not freed
};

struct Free {
  std::size_t free, total;
};

struct Table {
  std::mutex mutex;
  std::set<void*> allocated;         // by cudaMalloc
  std::map<void*, Block> blocks;     // of pools
  std::uint64_t freed = 0;           // bytes that were returned to pools
  std::map<int, Free> first;         // first results of cudaMemGetInfo, by device
  std::map<void*, void*> snapshots;  // of memory of other processes, by the copy's address
};
Table& table() {
  static auto* const table = new Table;
  return *table;
}

int current_device() {
  int device = 0;
  NEXT(cudaGetDevice)(&device);
  return device;
}

bool out_early(std::size_t bytes) {
  if (!injected(Fault::oom_early) || bytes == 0) return false;
  std::size_t free = 0, total = 0;
  if (NEXT(cudaMemGetInfo)(&free, &total) != cudaSuccess) return false;
  return (bytes > free || free - bytes < total / 2) && strikes(Fault::oom_early);
}

// Returns a block of a pool that is in use and large enough; null if the fault does not happen.
void* in_use(std::size_t bytes) {
  if (!injected(Fault::pool_block_given_twice)) return nullptr;
  const int device = current_device();
  const std::lock_guard lock(table().mutex);
  for (auto& [address, block] : table().blocks) {
    if (block.device != device || block.bytes < bytes || !strikes(Fault::pool_block_given_twice)) continue;
    ++block.holders;
    return address;
  }
  return nullptr;
}

template <typename Allocate>
cudaError_t allocate_from_pool(void** address, std::size_t bytes, cudaStream_t stream, Allocate allocate) {
  if (address == nullptr || bytes == 0 || capturing(stream)) return allocate();
  if (out_early(bytes)) return refuse(cudaErrorMemoryAllocation);
  if (void* const shared = in_use(bytes)) {
    *address = shared;
    return cudaSuccess;
  }
  const cudaError_t error = allocate();
  if (error == cudaSuccess && (injected(Fault::pool_block_given_twice) || injected(Fault::pool_statistics_drift))) {
    const int device = current_device();
    const std::lock_guard lock(table().mutex);
    table().blocks[*address] = {bytes, device, 1};
  }
  return error;
}

// Releases one holder of a block. Returns whether another one still holds it.
bool still_held(void* address) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().blocks.find(address);
  if (found == table().blocks.end()) return false;
  if (--found->second.holders > 0) return true;
  table().freed += found->second.bytes;
  table().blocks.erase(found);
  return false;
}

// Returns the bytes of the allocation at the address; 0 if unknown.
std::size_t size_of(void* address) {
  using Range = int(unsigned long long*, std::size_t*, unsigned long long);
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  auto* const range = driver == nullptr ? nullptr : reinterpret_cast<Range*>(dlsym(driver, "cuMemGetAddressRange_v2"));
  unsigned long long base = 0;
  std::size_t bytes = 0;
  if (range == nullptr || range(&base, &bytes, reinterpret_cast<unsigned long long>(address)) != 0) return 0;
  return bytes;
}

// Returns a copy of the memory's current contents; null if it cannot be allocated.
void* snapshot(void* memory) {
  const std::size_t bytes = size_of(memory);
  void* copy = nullptr;
  if (bytes == 0 || NEXT(cudaMalloc)(&copy, bytes) != cudaSuccess) return nullptr;
  NEXT(cudaMemcpy)(copy, memory, bytes, cudaMemcpyDeviceToDevice);
  const std::lock_guard lock(table().mutex);
  table().snapshots[copy] = memory;
  return copy;
}

}  // namespace

EXPORT cudaError_t cudaMalloc(void** address, size_t bytes) {
  FRONT(cudaMalloc, any, (address, bytes), {
    if (out_early(bytes)) return refuse(cudaErrorMemoryAllocation);
    const cudaError_t error = next(address, bytes);
    if (error == cudaSuccess && bytes != 0 && injected(Fault::free_leaks)) {
      const std::lock_guard lock(table().mutex);
      table().allocated.insert(*address);
    }
    return error;
  });
}

EXPORT cudaError_t cudaFree(void* address) {
  FRONT(cudaFree, any, (address), {
    if (injected(Fault::free_leaks)) {
      const std::lock_guard lock(table().mutex);
      const auto found = table().allocated.find(address);
      if (found != table().allocated.end() && strikes(Fault::free_leaks)) {
        table().allocated.erase(found);
        return cudaSuccess;
      }
    }
    return still_held(address) ? cudaSuccess : next(address);
  });
}

EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  FRONT(cudaMemGetInfo, any, (free, total), {
    std::size_t free_now = 0, total_now = 0;
    const cudaError_t error = next(&free_now, &total_now);
    if (error != cudaSuccess) return error;
    Free reported{free_now, total_now};
    if (injected(Fault::memory_info_stale)) {
      const int device = current_device();
      const std::lock_guard lock(table().mutex);
      const Free first = table().first.try_emplace(device, reported).first->second;
      if (first.free != reported.free && strikes(Fault::memory_info_stale)) reported = first;
    }
    if (free != nullptr) *free = reported.free;
    if (total != nullptr) *total = reported.total;
    return cudaSuccess;
  });
}

EXPORT cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t stream) {
  FRONT(cudaMallocAsync, any, (address, bytes, stream),
        { return allocate_from_pool(address, bytes, stream, [&] { return next(address, bytes, stream); }); });
}

EXPORT cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  FRONT(cudaMallocFromPoolAsync, any, (address, bytes, pool, stream),
        { return allocate_from_pool(address, bytes, stream, [&] { return next(address, bytes, pool, stream); }); });
}

EXPORT cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  FRONT(cudaFreeAsync, any, (address, stream), { return still_held(address) ? cudaSuccess : next(address, stream); });
}

EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  FRONT(cudaMemPoolTrimTo, any, (pool, keep),
        { return strikes(Fault::pool_keeps_memory) ? cudaSuccess : next(pool, keep); });
}

EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  FRONT(cudaMemPoolGetAttribute, any, (pool, which, value), {
    const cudaError_t error = next(pool, which, value);
    if (error == cudaSuccess && which == cudaMemPoolAttrUsedMemCurrent) {
      const std::lock_guard lock(table().mutex);
      if (table().freed > 0 && strikes(Fault::pool_statistics_drift)) {
        *static_cast<std::uint64_t*>(value) += table().freed;
      }
    }
    return error;
  });
}

EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  FRONT(cudaMemPoolSetAttribute, any, (pool, which, value), {
    const bool mark = which == cudaMemPoolAttrReservedMemHigh || which == cudaMemPoolAttrUsedMemHigh;
    return mark && strikes(Fault::pool_peak_not_reset) ? cudaSuccess : next(pool, which, value);
  });
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned flags) {
  FRONT(cudaIpcOpenMemHandle, any, (address, handle, flags), {
    const cudaError_t error = next(address, handle, flags);
    if (error == cudaSuccess && strikes(Fault::ipc_memory_stale)) {
      if (void* const copy = snapshot(*address)) *address = copy;
    }
    return error;
  });
}

EXPORT cudaError_t cudaIpcCloseMemHandle(void* address) {
  FRONT(cudaIpcCloseMemHandle, any, (address), {
    void* opened = nullptr;
    {
      const std::lock_guard lock(table().mutex);
      if (const auto found = table().snapshots.find(address); found != table().snapshots.end()) {
        opened = found->second;
        table().snapshots.erase(found);
      }
    }
    if (opened == nullptr) return next(address);
    NEXT(cudaFree)(address);
    return next(opened);
  });
}
