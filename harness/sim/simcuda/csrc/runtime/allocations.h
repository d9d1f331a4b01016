// The allocations that a program knows, by address.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>

namespace simcuda {

class Device;

struct Allocation {
  // How it was made, and so how it may be given back.
  enum class Kind {
    device,      // cudaMalloc: cudaFree, cudaFreeAsync
    managed,     // cudaMallocManaged: cudaFree
    host,        // cudaHostAlloc: cudaFreeHost
    registered,  // cudaHostRegister: cudaHostUnregister
    mapped,      // cuMemMap: cuMemUnmap
    opened,      // cudaIpcOpenMemHandle: cudaIpcCloseMemHandle
    pool,        // cudaMallocAsync: cudaFreeAsync, cudaFree
    graph,       // a memory node, while it lives: cudaFreeAsync, cudaFree, a node
    variable,    // a variable of a module: not at all
  };

  char* base = nullptr;
  std::size_t size = 0;
  Kind kind = Kind::device;
  Device* device = nullptr;       // host memory: the one that was current
  unsigned flags = 0;             // of host and managed memory
  unsigned long long id = 0;      // unlike any other of this process
  std::shared_ptr<void> owner{};  // what its kind needs

  bool contains(const void* address) const { return address >= base && address < base + size; }
  bool pinned() const { return kind == Kind::host || kind == Kind::registered; }
  bool on_device() const { return !pinned() && kind != Kind::managed; }
  cudaMemoryType type() const {
    return pinned() ? cudaMemoryTypeHost : kind == Kind::managed ? cudaMemoryTypeManaged : cudaMemoryTypeDevice;
  }
};

// Throws Error(cudaErrorHostMemoryAlreadyRegistered) if it overlaps one that is known.
void add_allocation(Allocation allocation);
// Nothing if it is none, or of another kind; `address` must be its first.
std::optional<Allocation> remove_allocation(const void* address, std::initializer_list<Allocation::Kind> kinds);
// The one that the address is in.
std::optional<Allocation> find_allocation(const void* address);

}  // namespace simcuda
