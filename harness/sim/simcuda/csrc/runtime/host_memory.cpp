// Pinned host memory: allocated as such, or registered. CUDA Runtime API, "Memory Management".

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include "allocations.h"
#include "call.h"
#include "capture.h"
#include "context.h"
#include "device.h"
#include "pages.h"
#include "races.h"

using namespace simcuda;
using Kind = Allocation::Kind;

namespace {

cudaError_t allocate_host(void** address, std::size_t bytes, unsigned flags, const char* call) {
  check(address != nullptr);
  check((flags & ~(cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)) == 0);
  Device& device = current_device();
  wake(device);
  *address = nullptr;
  if (bytes == 0) return cudaSuccess;
  forbid_unsafe(call);
  const std::size_t size = round_up(bytes, page_size);
  const int sharing = races::checks_order() ? MAP_SHARED : MAP_PRIVATE;  // only shared memory can be mapped twice
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
  check(memory != MAP_FAILED, cudaErrorMemoryAllocation);
  if (races::checks_order()) {
    void* const second = mremap(memory, 0, size, MREMAP_MAYMOVE);
    if (second != MAP_FAILED) {
      races::add_pinned(static_cast<char*>(memory), bytes, static_cast<char*>(second) - static_cast<char*>(memory));
    }
  }
  add_allocation({static_cast<char*>(memory), bytes, Kind::host, &device, flags});
  *address = memory;
  return cudaSuccess;
}

// Whether all pages of the range are mapped: the driver pins pages, and cannot pin unmapped ones.
bool mapped(const void* address, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(address) / page_size * page_size;
  const auto last = reinterpret_cast<std::uintptr_t>(address) + bytes;
  // msync with MS_ASYNC fails with ENOMEM for unmapped pages, and otherwise does nothing.
  return msync(reinterpret_cast<void*>(first), last - first, MS_ASYNC) == 0;
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned flags) {
  SIMCUDA_CALL(device, { return allocate_host(address, bytes, flags, "cudaHostAlloc"); });
}

SIMCUDA_EXPORT cudaError_t cudaMallocHost(void** address, size_t bytes) {
  SIMCUDA_CALL(device, { return allocate_host(address, bytes, cudaHostAllocDefault, "cudaMallocHost"); });
}

// The call waits for the devices, which may be copying from or to the memory.
SIMCUDA_EXPORT cudaError_t cudaFreeHost(void* address) {
  SIMCUDA_CALL(device, {
    if (address == nullptr) return;
    const auto found = find_allocation(address);
    check(found && found->base == address && found->kind == Kind::host);
    forbid_unsafe("cudaFreeHost");
    for (int index = 0; index < device_count(); ++index) {
      if (Device& each = device(index); awake(each)) drain(each);
    }
    const auto allocation = remove_allocation(address, {Kind::host});
    check(allocation.has_value());
    const std::size_t size = round_up(allocation->size, page_size);
    char* const second = races::for_work(allocation->base);
    races::remove_pinned(allocation->base);
    if (second != allocation->base) munmap(second, size);
    munmap(allocation->base, size);
  });
}

SIMCUDA_EXPORT cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned flags) {
  SIMCUDA_CALL(device, {
    check(address != nullptr && bytes != 0);
    check((flags & ~(cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory |
                     cudaHostRegisterReadOnly)) == 0);
    check(!(flags & cudaHostRegisterIoMemory), cudaErrorNotSupported);
    Device& device = current_device();
    wake(device);
    forbid_unsafe("cudaHostRegister");
    check(mapped(address, bytes));
    add_allocation({static_cast<char*>(address), bytes, Kind::registered, &device, flags});
  });
}

SIMCUDA_EXPORT cudaError_t cudaHostUnregister(void* address) {
  SIMCUDA_CALL(device, {
    check(address != nullptr);
    forbid_unsafe("cudaHostUnregister");
    const auto found = find_allocation(address);
    check(found && found->kind == Kind::registered, cudaErrorHostMemoryNotRegistered);
    check(found->base == address);
    remove_allocation(address, {Kind::registered});
  });
}

SIMCUDA_EXPORT cudaError_t cudaHostGetDevicePointer(void** to, void* address, unsigned flags) {
  SIMCUDA_CALL(device, {
    check(to != nullptr && flags == 0);
    const auto found = find_allocation(address);
    check(found && found->pinned());
    *to = address;
  });
}

SIMCUDA_EXPORT cudaError_t cudaHostGetFlags(unsigned* flags, void* address) {
  SIMCUDA_CALL(device, {
    check(flags != nullptr);
    const auto found = find_allocation(address);
    check(found && found->kind == Kind::host);
    *flags = found->flags | cudaHostAllocMapped;  // with unified addressing, all pinned memory is mapped
  });
}
