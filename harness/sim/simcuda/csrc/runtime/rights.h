// SIMCUDA_CHECK=memory: device memory is for work alone, as on a GPU; an access of the host ends the process.
//
// Device memory has a protection key (pkeys(7)), for which each thread has its own rights: the threads of the pool have
// them, those of the program do not. A thread begins with the rights of the thread that starts it. Without the check,
// or without a processor that has keys, all threads may use device memory.
#pragma once

#include <signal.h>

#include <cstddef>

namespace simcuda {

bool guards_device_memory();
// mprotect for device memory: pages keep the key when their protection changes later.
int protect_device_memory(void* address, std::size_t bytes, int protection);
// Whether a fault is an access to device memory by a thread without the right.
bool is_refused(const siginfo_t& fault);
// Lets the calling thread use device memory, and the threads that it starts from now on.
void allow_device_memory();

// Whether the calling thread may use device memory while the object exists.
class DeviceMemoryRight {
 public:
  explicit DeviceMemoryRight(bool allowed);
  ~DeviceMemoryRight();
  DeviceMemoryRight(const DeviceMemoryRight&) = delete;
  DeviceMemoryRight& operator=(const DeviceMemoryRight&) = delete;

 private:
  int before_ = 0;
};

}  // namespace simcuda
