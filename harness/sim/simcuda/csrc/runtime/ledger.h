// This process's page of the ledger that NVML reads: memory, contexts and the time in which devices worked.
#pragma once

#include <cstdint>

namespace simcuda::ledger {

// `device` is the index that counts all devices of the machine, not the visible ones alone. All of these may be called
// at any time and from any thread; where the page cannot be made, they do nothing.
void open_context(int device);
void close_context(int device);
void add_memory(int device, std::int64_t bytes);  // negative: given back

// Work runs on the device as long as one of these lives.
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
