#include "allocations.h"

#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "error.h"
#include "races.h"

namespace simcuda {

namespace {

using Kind = Allocation::Kind;

// Never destroyed, like everything in this file.
struct Allocations {
  std::shared_mutex mutex;
  std::map<const char*, Allocation> allocations;
};
Allocations& all_allocations() {
  static auto* const all = new Allocations;
  return *all;
}

}  // namespace

void add_allocation(Allocation allocation) {
  static std::atomic<unsigned long long> ids{0};
  allocation.id = ++ids;
  auto& [mutex, allocations] = all_allocations();
  const std::unique_lock lock(mutex);
  const auto next = allocations.lower_bound(allocation.base);
  if ((next != allocations.end() && next->first < allocation.base + allocation.size) ||
      (next != allocations.begin() && std::prev(next)->second.contains(allocation.base))) {
    throw Error(cudaErrorHostMemoryAlreadyRegistered);
  }
  races::forget(allocation.base, allocation.size);
  allocations.emplace_hint(next, allocation.base, std::move(allocation));
}

std::optional<Allocation> remove_allocation(const void* address, std::initializer_list<Kind> kinds) {
  auto& [mutex, allocations] = all_allocations();
  const std::unique_lock lock(mutex);
  const auto found = allocations.find(static_cast<const char*>(address));
  if (found == allocations.end()) return std::nullopt;
  for (const Kind kind : kinds) {
    if (found->second.kind != kind) continue;
    Allocation allocation = std::move(found->second);
    allocations.erase(found);
    races::forget(allocation.base, allocation.size);
    return allocation;
  }
  return std::nullopt;
}

std::vector<Allocation> remove_device_memory(const Device& device) {
  auto& [mutex, allocations] = all_allocations();
  const std::unique_lock lock(mutex);
  std::vector<Allocation> removed;
  for (auto next = allocations.begin(); next != allocations.end();) {
    const auto one = next++;
    if (one->second.kind != Kind::device || one->second.device != &device) continue;
    removed.push_back(one->second);
    allocations.erase(one);
  }
  return removed;
}

std::optional<Allocation> find_allocation(const void* address) {
  auto& [mutex, allocations] = all_allocations();
  const std::shared_lock lock(mutex);
  const auto next = allocations.upper_bound(static_cast<const char*>(address));
  if (next == allocations.begin()) return std::nullopt;
  const Allocation& allocation = std::prev(next)->second;
  return allocation.contains(address) ? std::optional(allocation) : std::nullopt;
}

}  // namespace simcuda
