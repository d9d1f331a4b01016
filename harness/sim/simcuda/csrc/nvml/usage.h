// The use of the devices by this user's processes, from their pages of the ledger.
#pragma once

#include <cstdint>
#include <vector>

namespace simcuda::nvml {

struct ProcessUsage {
  unsigned pid;
  std::uint64_t used;
};

struct Usage {
  std::uint64_t used = 0;               // bytes, of all processes
  std::uint64_t busy = 0;               // nanoseconds in which work ran, until now
  bool running = false;                 // whether work runs now
  std::vector<ProcessUsage> processes;  // those with a context
};

// Leaves out what there is no memory for.
Usage usage(int device) noexcept;

// Returns the percentage of around the last half second in which work ran. It keeps earlier readings; the first reading
// is 100 if work is running now, otherwise 0.
unsigned utilization(int device) noexcept;

}  // namespace simcuda::nvml
