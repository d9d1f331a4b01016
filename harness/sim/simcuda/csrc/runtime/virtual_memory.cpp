// Address ranges without memory, memory without addresses, and mappings between them. CUDA Driver API, "Virtual Memory
// Management".
//
// Memory is a part of the device's file, so it needs no descriptor of its own. An exported handle is a descriptor of
// that file whose position identifies the part; the file's name identifies the device.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "access.h"
#include "allocations.h"
#include "arena.h"
#include "context.h"
#include "device.h"
#include "driver_call.h"
#include "pages.h"
#include "pools.h"
#include "rights.h"
#include "simcuda_driver.h"

using namespace simcuda;

namespace {

constexpr std::size_t granularity = huge_page_size;
constexpr std::size_t freed_ranges = 64;

struct Physical {
  Device* device = nullptr;
  std::size_t size = 0;
  void* memory = nullptr;  // in the device's arena; null for memory of another process
  int file = -1;
  std::size_t offset = 0;
  int types = 0;          // handle types that it may be exported as
  bool exported = false;  // another process may have it mapped
  int references = 1;     // number of handles

  ~Physical() {
    Arena& arena = arena_of(*device);
    if (memory == nullptr) {
      close(file);
    } else if (exported) {
      // The part of the file is not reused, since another process could still access it.
      arena.discard(memory, size);
      arena.give_back(size);
    } else {
      arena.release(memory, size);
      arena.give_back(size);
    }
  }
};

struct Mapping {
  std::size_t size;
  std::shared_ptr<Physical> physical;
  unsigned access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
};

struct VirtualMemory {
  std::mutex mutex;
  std::map<char*, std::size_t> reserved;
  std::deque<std::pair<char*, std::size_t>> freed;  // the most recently freed ranges
  std::map<char*, Mapping> mappings;
  std::map<const Physical*, std::shared_ptr<Physical>> handles;
};
VirtualMemory& virtual_memory() {
  static auto* const memory = new VirtualMemory;
  return *memory;
}

void check_driver(bool condition, CUresult otherwise = CUDA_ERROR_INVALID_VALUE) {
  if (!condition) throw Error(static_cast<cudaError_t>(otherwise));
}

char* pointer(CUdeviceptr address) { return reinterpret_cast<char*>(address); }
bool whole(std::size_t size) { return size != 0 && size % granularity == 0; }

// The caller of these holds the mutex.
std::shared_ptr<Physical> find(CUmemGenericAllocationHandle handle) {
  const auto found = virtual_memory().handles.find(reinterpret_cast<const Physical*>(handle));
  check_driver(found != virtual_memory().handles.end());
  return found->second;
}
CUmemGenericAllocationHandle keep(const std::shared_ptr<Physical>& physical) {
  virtual_memory().handles[physical.get()] = physical;
  return reinterpret_cast<CUmemGenericAllocationHandle>(physical.get());
}
// Returns the beginning of the reservation that contains the range; null if there is none.
char* reserved(const char* begin, std::size_t size) {
  const auto next = virtual_memory().reserved.upper_bound(const_cast<char*>(begin));
  if (next == virtual_memory().reserved.begin()) return nullptr;
  const auto [base, length] = *std::prev(next);
  return begin + size <= base + length ? base : nullptr;
}
// Returns the mappings that form the range, which must begin and end with one of them.
std::vector<std::map<char*, Mapping>::iterator> mappings_of(char* begin, std::size_t size) {
  std::vector<std::map<char*, Mapping>::iterator> found;
  char* place = begin;
  for (auto each = virtual_memory().mappings.find(begin); place < begin + size; ++each) {
    check_driver(each != virtual_memory().mappings.end() && each->first == place);
    found.push_back(each);
    place += each->second.size;
  }
  check_driver(place == begin + size);
  return found;
}

void check_prop(const CUmemAllocationProp* prop) {
  check_driver(prop != nullptr && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED);
  check_driver(prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE);
  check_driver(prop->location.id >= 0 && prop->location.id < device_count(), CUDA_ERROR_INVALID_DEVICE);
  constexpr int known = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  check_driver((prop->requestedHandleTypes & ~known) == 0, CUDA_ERROR_NOT_SUPPORTED);
}

}  // namespace

SIMCUDA_EXPORT CUresult simcudaMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr wish,
                                                 unsigned long long flags) {
  return driver_call<Needs::driver>(__func__, [&] {
    check_driver(address != nullptr && whole(size) && flags == 0 && (alignment & (alignment - 1)) == 0);
    const std::size_t to = std::max(alignment, granularity);
    constexpr int protection = PROT_NONE, kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char* base = nullptr;
    if (wish != 0 && wish % to == 0) {
      void* const memory = mmap(pointer(wish), size, protection, kind | MAP_FIXED_NOREPLACE, -1, 0);
      if (memory != MAP_FAILED && memory != pointer(wish)) munmap(memory, size);
      if (memory == pointer(wish)) base = pointer(wish);
    }
    if (base == nullptr) {
      void* const room = mmap(nullptr, size + to, protection, kind, -1, 0);
      check_driver(room != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
      char* const begin = static_cast<char*>(room);
      base = pointer(round_up(reinterpret_cast<CUdeviceptr>(room), to));
      if (base != begin) munmap(begin, static_cast<std::size_t>(base - begin));
      munmap(base + size, to - static_cast<std::size_t>(base - begin));
    }
    watch_accesses(base, size, current_device());
    const std::lock_guard lock(virtual_memory().mutex);
    virtual_memory().reserved[base] = size;
    *address = reinterpret_cast<CUdeviceptr>(base);
  });
}

SIMCUDA_EXPORT CUresult simcudaMemAddressFree(CUdeviceptr address, size_t size) {
  return driver_call<Needs::driver>(__func__, [&] {
    const std::lock_guard lock(virtual_memory().mutex);
    const auto found = virtual_memory().reserved.find(pointer(address));
    check_driver(found != virtual_memory().reserved.end() && found->second == size);
    const auto mapping = virtual_memory().mappings.lower_bound(pointer(address));
    check_driver(mapping == virtual_memory().mappings.end() || mapping->first >= pointer(address) + size);
    virtual_memory().reserved.erase(found);
    // Keep the addresses inaccessible for a while: work that still uses them then fails, and the system must not reuse
    // them.
    auto& freed = virtual_memory().freed;
    freed.emplace_back(pointer(address), size);
    if (freed.size() <= freed_ranges) return;
    unwatch_accesses(freed.front().first);
    munmap(freed.front().first, freed.front().second);
    freed.pop_front();
  });
}

SIMCUDA_EXPORT CUresult simcudaMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                                         const CUmemAllocationProp* prop, unsigned long long flags) {
  return driver_call<Needs::driver>(__func__, [&] {
    check_driver(handle != nullptr && whole(size) && flags == 0);
    check_prop(prop);
    Device& device = simcuda::device(prop->location.id);
    wake(device);
    check_driver(device.error() == cudaSuccess, static_cast<CUresult>(device.error()));
    Arena& arena = arena_of(device);
    if (!arena.take(size)) {
      trim_pools(device);
      check_driver(arena.take(size), CUDA_ERROR_OUT_OF_MEMORY);
    }
    void* const memory = arena.reserve(size);
    if (memory == nullptr) {
      arena.give_back(size);
      throw Error(cudaErrorMemoryAllocation);
    }
    auto physical = std::make_shared<Physical>();
    physical->device = &device;
    physical->size = size;
    physical->memory = memory;
    physical->file = arena.file();
    physical->offset = arena.offset(memory);
    physical->types = prop->requestedHandleTypes;
    const std::lock_guard lock(virtual_memory().mutex);
    *handle = keep(physical);
  });
}

// Mappings keep the memory alive.
SIMCUDA_EXPORT CUresult simcudaMemRelease(CUmemGenericAllocationHandle handle) {
  return driver_call<Needs::driver>(__func__, [&] {
    const std::lock_guard lock(virtual_memory().mutex);
    const auto physical = find(handle);
    if (--physical->references == 0) virtual_memory().handles.erase(physical.get());
  });
}

SIMCUDA_EXPORT CUresult simcudaMemMap(CUdeviceptr address, size_t size, size_t offset,
                                      CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return driver_call<Needs::driver>(__func__, [&] {
    check_driver(whole(size) && offset == 0 && flags == 0 && address % granularity == 0);
    const std::lock_guard lock(virtual_memory().mutex);
    const auto physical = find(handle);
    char* const base = pointer(address);
    char* const range = reserved(base, size);
    check_driver(size <= physical->size && range != nullptr);
    own_accesses(range, *physical->device);
    // add_allocation checks that nothing is mapped there.
    add_allocation({base, size, Allocation::Kind::mapped, physical->device, 0, 0, physical});
    if (mmap(base, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file, static_cast<off_t>(physical->offset)) ==
        MAP_FAILED) {
      remove_allocation(base, {Allocation::Kind::mapped});
      throw Error(cudaErrorMemoryAllocation);
    }
    protect_device_memory(base, size, PROT_NONE);
    madvise(base, size, MADV_DONTFORK);
    virtual_memory().mappings[base] = {size, physical};
  });
}

// The call waits for nothing: queued or later work that uses the addresses is an error.
SIMCUDA_EXPORT CUresult simcudaMemUnmap(CUdeviceptr address, size_t size) {
  return driver_call<Needs::driver>(__func__, [&] {
    const std::lock_guard lock(virtual_memory().mutex);
    for (const auto& each : mappings_of(pointer(address), size)) {
      remove_allocation(each->first, {Allocation::Kind::mapped});
      mmap(each->first, each->second.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
      virtual_memory().mappings.erase(each);
    }
  });
}

// All devices use host memory, so access for one device is access for all.
SIMCUDA_EXPORT CUresult simcudaMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access,
                                            size_t count) {
  return driver_call<Needs::driver>(__func__, [&] {
    check_driver(access != nullptr && count != 0);
    unsigned flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    for (size_t i = 0; i < count; ++i) {
      const CUmemLocation& at = access[i].location;  // the id is in a union since CUDA 13.2
      check_driver(at.type == CU_MEM_LOCATION_TYPE_DEVICE && access[i].flags <= CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
      check_driver(at.id >= 0 && at.id < device_count(), CUDA_ERROR_INVALID_DEVICE);
      flags |= access[i].flags;
    }
    const std::lock_guard lock(virtual_memory().mutex);
    for (const auto& each : mappings_of(pointer(address), size)) {
      each->second.access |= flags;
      const int protection = (each->second.access & CU_MEM_ACCESS_FLAGS_PROT_READ ? PROT_READ : 0) |
                             (each->second.access & CU_MEM_ACCESS_FLAGS_PROT_READWRITE & ~1U ? PROT_WRITE : 0);
      check_driver(mprotect(each->first, each->second.size, protection) == 0);
    }
  });
}

SIMCUDA_EXPORT CUresult simcudaMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                            CUdeviceptr address) {
  return driver_call<Needs::driver>(__func__, [&] {
    check_driver(flags != nullptr && location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    const std::lock_guard lock(virtual_memory().mutex);
    const auto next = virtual_memory().mappings.upper_bound(pointer(address));
    check_driver(next != virtual_memory().mappings.begin());
    const auto& [base, mapping] = *std::prev(next);
    check_driver(pointer(address) < base + mapping.size);
    *flags = mapping.access;
  });
}

SIMCUDA_EXPORT CUresult simcudaMemGetAllocationGranularity(size_t* size, const CUmemAllocationProp* prop,
                                                           CUmemAllocationGranularity_flags) {
  return driver_call<Needs::driver>(__func__, [&] {
    check_driver(size != nullptr);
    check_prop(prop);
    *size = granularity;
  });
}

SIMCUDA_EXPORT CUresult simcudaMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                                    CUmemGenericAllocationHandle handle) {
  return driver_call<Needs::driver>(__func__, [&] {
    check_driver(prop != nullptr);
    const std::lock_guard lock(virtual_memory().mutex);
    const auto physical = find(handle);
    *prop = {};
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop->location.id = physical->device->index;
    prop->requestedHandleTypes = static_cast<CUmemAllocationHandleType>(physical->types);
  });
}

SIMCUDA_EXPORT CUresult simcudaMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return driver_call<Needs::driver>(__func__, [&] {
    check_driver(handle != nullptr);
    const std::lock_guard lock(virtual_memory().mutex);
    const auto next = virtual_memory().mappings.upper_bound(static_cast<char*>(address));
    check_driver(next != virtual_memory().mappings.begin());
    const auto& [base, mapping] = *std::prev(next);
    check_driver(address < base + mapping.size);
    // The program may have released all handles.
    if (virtual_memory().handles.contains(mapping.physical.get())) {
      ++mapping.physical->references;
    } else {
      mapping.physical->references = 1;
    }
    *handle = keep(mapping.physical);
  });
}

// Opens the file again, so that the descriptor has its own position, which it keeps in any process. Offsets and sizes
// are multiples of 2 MiB, so the size fits into the lower bits of the position.
SIMCUDA_EXPORT CUresult simcudaMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                                          CUmemAllocationHandleType type, unsigned long long flags) {
  return driver_call<Needs::driver>(__func__, [&] {
    check_driver(shareable != nullptr && flags == 0);
    const std::lock_guard lock(virtual_memory().mutex);
    const auto physical = find(handle);
    check_driver(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    check_driver((physical->types & type) != 0);
    const std::string path = "/proc/self/fd/" + std::to_string(physical->file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    check_driver(file >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    lseek(file, static_cast<off_t>(physical->offset + physical->size / granularity), SEEK_SET);
    physical->exported = true;
    *static_cast<int*>(shareable) = file;
  });
}

SIMCUDA_EXPORT CUresult simcudaMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                                            CUmemAllocationHandleType type) {
  return driver_call<Needs::driver>(__func__, [&] {
    check_driver(handle != nullptr);
    check_driver(type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CUDA_ERROR_NOT_SUPPORTED);
    const int given = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
    const off_t position = lseek(given, 0, SEEK_CUR);
    char target[64] = "";
    const std::string path = "/proc/self/fd/" + std::to_string(given);
    check_driver(position > 0 && readlink(path.c_str(), target, sizeof target - 1) > 0);
    Device* device = nullptr;
    for (int index = 0; index < device_count(); ++index) {
      const std::string name = "/memfd:" + Arena::file_name(simcuda::device(index).number) + " ";
      if (std::string(target).starts_with(name)) device = &simcuda::device(index);
    }
    check_driver(device != nullptr);
    const int file = fcntl(given, F_DUPFD_CLOEXEC, 0);
    check_driver(file >= 0, CUDA_ERROR_OPERATING_SYSTEM);
    wake(*device);
    auto physical = std::make_shared<Physical>();
    physical->device = device;
    physical->size = static_cast<std::size_t>(position) % granularity * granularity;
    physical->file = file;
    physical->offset = static_cast<std::size_t>(position) / granularity * granularity;
    physical->types = type;
    const std::lock_guard lock(virtual_memory().mutex);
    *handle = keep(physical);
  });
}
