// The parts of NVML's public interface that are answered here. The wheels bring no nvml.h; names, layouts and numbers
// are those of the NVML API Reference, as nvidia-ml-py has them.
#pragma once

#include <cstdint>

#include "simcuda_machine.h"

#define NVML_API extern "C" __attribute__((visibility("default")))

namespace simcuda::nvml {

enum Status : int {
  success = 0,
  uninitialized = 1,
  invalid_argument = 2,
  not_supported = 3,
  not_found = 6,
  insufficient_size = 7,
  timeout = 10,
  gpu_is_lost = 15,
  argument_version_mismatch = 25,
  unknown_error = 999,
};

// A handle is the address of the device's entry.
struct Entry {
  int index;
};
using Device = const Entry*;

constexpr unsigned long long not_available = ~0ULL;
constexpr unsigned no_instance = ~0U;

// The version of a structure, as its first field has it: the size, and the number in the upper byte.
constexpr unsigned version_of(std::size_t size, unsigned number) { return static_cast<unsigned>(size) | number << 24; }

// Each function begins with one of these.
Status ready();               // the library is initialised
Status check(Device device);  // so, and the handle is one of its own and the device is not lost
Device device_at(int index);
int device_count();
std::size_t device_memory();

// The answer of a function: `value`, once the device and the caller's pointer are checked.
template <typename Value>
Status give(Device device, Value* to, Value value) {
  if (const Status status = check(device)) return status;
  if (to == nullptr) return invalid_argument;
  *to = value;
  return success;
}

}  // namespace simcuda::nvml
