// The parts of NVML's public interface that the simulation implements. The wheels contain no nvml.h. Names, layouts and
// numbers come from the NVML API Reference, as in nvidia-ml-py.
#pragma once

#include <cstdint>
#include <new>

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
  insufficient_memory = 20,
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

// The version field of a structure: the size, and the version number in the upper byte.
constexpr unsigned version_of(std::size_t size, unsigned number) { return static_cast<unsigned>(size) | number << 24; }

// Each function begins with one of these checks.
Status ready();               // the library is initialised
Status check(Device device);  // the library is initialised, the handle is valid, and the device is not lost
Device device_at(int index);
int device_count();
std::size_t device_memory();

// Runs a function that allocates memory: no exception may reach a caller, which is written in C or Python.
template <typename Body>
Status guarded(const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return insufficient_memory;
  } catch (...) {
    return unknown_error;
  }
}

// Stores `value` as a function's answer, after checking the device and the caller's pointer.
template <typename Value>
Status give(Device device, Value* to, Value value) {
  if (const Status status = check(device)) return status;
  if (to == nullptr) return invalid_argument;
  *to = value;
  return success;
}

}  // namespace simcuda::nvml
