// Pinned memory of the host that work uses: the check for races protects its pages until the host has waited for the
// work, so that it sees an access of the host in between. The work itself uses a second mapping of the memory.
//
// Without locks: the check for races has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "conflict.h"

namespace simcuda::races {

// Work that uses pinned memory, and its place in the order.
struct Pending {
  std::uintptr_t begin = 0, end = 0;
  std::uint32_t lane = 0;
  std::uint64_t tick = 0;
  Accessor accessor;
};

class HostPages {
 public:
  void add(const char* base, std::size_t bytes, std::ptrdiff_t to_second);
  void remove(const void* base);
  // Returns the distance from an address to the same byte of the second mapping; 0 if it has none.
  std::ptrdiff_t to_second(const void* address) const;

  void hold(Pending work);  // ignores memory that was not added
  void release(const Clock& host);
  // Makes the page of the address accessible. Returns the work that the host should have waited for, if there is some;
  // `known` tells whether the page is of such memory at all.
  std::optional<Pending> touch(std::uintptr_t address, bool write, bool& known);

 private:
  struct Range {
    std::uintptr_t end;
    std::ptrdiff_t to_second;
  };
  const Range* find(std::uintptr_t address) const;
  void protect(const Pending& work) const;

  std::map<std::uintptr_t, Range> ranges_;  // by begin
  std::vector<Pending> pending_;
};

}  // namespace simcuda::races
