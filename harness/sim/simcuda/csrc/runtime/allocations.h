// The allocations of the program, by address.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

namespace simcuda {

class Device;

struct Allocation {
  // The function that made the allocation, and so those that can free it.
  enum class Kind {
    device,      // cudaMalloc: cudaFree, cudaFreeAsync
    managed,     // cudaMallocManaged: cudaFree
    host,        // cudaHostAlloc: cudaFreeHost
    registered,  // cudaHostRegister: cudaHostUnregister
    mapped,      // cuMemMap: cuMemUnmap
    opened,      // cudaIpcOpenMemHandle: cudaIpcCloseMemHandle
    pool,        // cudaMallocAsync: cudaFreeAsync, cudaFree
    graph,       // a memory node, while allocated: cudaFreeAsync, cudaFree, a node
    variable,    // a variable of a module: never
  };

  char* base = nullptr;
  std::size_t size = 0;
  Kind kind = Kind::device;
  Device* device = nullptr;       // for host memory: the device that was current
  unsigned flags = 0;             // for host and managed memory
  unsigned long long id = 0;      // unique in the process
  std::shared_ptr<void> owner{};  // data of its kind

  bool contains(const void* address) const { return address >= base && address < base + size; }
  bool pinned() const { return kind == Kind::host || kind == Kind::registered; }
  bool on_device() const { return !pinned() && kind != Kind::managed; }
  cudaMemoryType type() const {
    return pinned() ? cudaMemoryTypeHost : kind == Kind::managed ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
  }
};

// Throws Error(cudaErrorHostMemoryAlreadyRegistered) if it overlaps a known allocation.
void add_allocation(Allocation allocation);
// Returns nothing if `address` is not the beginning of an allocation of one of these kinds.
std::optional<Allocation> remove_allocation(const void* address, std::initializer_list<Allocation::Kind> kinds);
// Removes and returns what cudaMalloc has made on a device.
std::vector<Allocation> remove_device_memory(const Device& device);
// Returns the allocation that contains the address.
std::optional<Allocation> find_allocation(const void* address);

}  // namespace simcuda
