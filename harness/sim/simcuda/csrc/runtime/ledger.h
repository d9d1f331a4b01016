// This process's page of the ledger that NVML reads: memory, contexts and the busy time of devices.
#pragma once

#include <cstdint>

#include "../include/simcuda_ledger.h"

namespace simcuda::ledger {

// `device` is the index among all devices of the machine, not only the visible ones. These functions may be called at
// any time and from any thread. If the page could not be created, they do nothing.
void open_context(int device);
void close_context(int device);
void add_memory(int device, std::int64_t bytes);  // negative when memory is freed
void count_kernel(int device);
void count_object(LedgerObject kind, int change);  // 1 when it is made, -1 when it is destroyed

// Work runs on the device while an instance exists.
class Busy {
 public:
  explicit Busy(int device);
  ~Busy();
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  const int device_;
};

}  // namespace simcuda::ledger
