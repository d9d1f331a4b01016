// Addresses of a device that have no memory: work that touches them fails its device, as on CUDA.
#pragma once

#include <cstddef>

namespace simcuda {

class Device;

// Work that touches a page of the range that may not be accessed fails its device with cudaErrorIllegalAddress; threads
// that torch's operators start fail the `owner` of the range. Another access ends the process, as it does without this.
// `unwatch_accesses` comes before the range is given back.
void watch_accesses(char* base, std::size_t size, Device& owner);
void unwatch_accesses(char* base);
// The owner of a range that is watched.
void own_accesses(char* base, Device& owner);
// The calling thread is the program's.
void note_host_thread() noexcept;

// While it lives, the calling thread runs work of the device.
class WorkScope {
 public:
  explicit WorkScope(Device& device);
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  Device* const before_;
};

}  // namespace simcuda
