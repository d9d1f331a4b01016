#include "memory_check.h"

#include <cstdint>
#include <cstring>
#include <optional>

#include "allocations.h"
#include "device.h"

namespace simcuda {

namespace {

struct Refusal {
  cudaError_t error;
  const char *what, *instead;
};

std::optional<Refusal> refusal_of(const Device& device, const races::Access& access) {
  const auto found = find_allocation(access.address);
  if (!found) {
    return Refusal{cudaErrorIllegalAddress, "of memory that is neither a device's nor pinned",
                   "a GPU reaches only memory that CUDA has allocated or registered, and that is not freed"};
  }
  // Adjacent ranges of virtual memory can form one range.
  const char* const last = static_cast<const char*>(access.address) + access.bytes - 1;
  if (found->kind != Allocation::Kind::mapped && !found->contains(last)) {
    return Refusal{cudaErrorIllegalAddress, "that begin in an allocation and end outside of it",
                   "a GPU notices it only where the next page has no memory"};
  }
  if (found->kind == Allocation::Kind::device && found->device != &device &&
      !device.peer_enabled(found->device->index)) {
    return Refusal{cudaErrorIllegalAddress, "of another device", "cudaDeviceEnablePeerAccess is missing"};
  }
  if (reinterpret_cast<std::uintptr_t>(access.address) % access.item != 0) {
    return Refusal{cudaErrorMisalignedAddress, "at an address that is no multiple of its element's size",
                   "a GPU loads and stores aligned elements only"};
  }
  return std::nullopt;
}

}  // namespace

cudaError_t refused_accesses(const Device& device, const std::vector<races::Access>& accesses,
                             const races::Accessor& accessor, races::Conflicts& conflicts) {
  if (!races::checks_memory()) return cudaSuccess;
  // A copy between devices goes through the driver, which needs no access to the peer.
  if (accessor.origin != nullptr && std::strcmp(accessor.origin->name, "aten::copy_") == 0) return cudaSuccess;
  for (const races::Access& access : accesses) {
    if (access.bytes == 0) continue;
    if (const auto refusal = refusal_of(device, access)) {
      races::Accessor later = accessor;
      later.writes = access.write;
      conflicts.push_back(
          {later, later, races::Conflict::Kind::refused, access.bytes, refusal->what, refusal->instead});
      return refusal->error;
    }
  }
  return cudaSuccess;
}

}  // namespace simcuda
