// How the processes of this user use the devices, read from their pages of the ledger.
#pragma once

#include <cstdint>
#include <vector>

namespace simcuda::nvml {

struct ProcessUsage {
  unsigned pid;
  std::uint64_t used;
};

struct Usage {
  std::uint64_t used = 0;               // bytes, by all processes
  std::uint64_t busy = 0;               // nanoseconds in which work ran, until now
  bool running = false;                 // whether work runs now
  std::vector<ProcessUsage> processes;  // those with a context
};

Usage usage(int device);

// Per cent of about the last half of a second in which work ran. It remembers what it read before; the first reading of
// all tells whether work runs at this moment.
unsigned utilization(int device);

}  // namespace simcuda::nvml
