// The environment variables that configure the devices of this process; read once.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace soft {

// SOFT_DEVICE_COUNT      number of devices in the machine, 1 to 64; 2 if not set
// SOFT_DEVICE_MEMORY     bytes per device, or with the suffix KiB, MiB, GiB; 1 GiB if not set
// SOFT_VISIBLE_DEVICES   visible devices in this order, by index or UUID; all if not set, none if empty
// SOFT_WITHOUT_TYPES     torch's names of unsupported types, separated by commas; none if not set
// SOFT_SYNCHRONOUS       1: a launch returns once its work is done; 0 if not set
// SOFT_INJECT            faults, see faults.h
struct Config {
  std::vector<std::string> uuids;  // of the visible devices: SOFT-0, SOFT-1, ...
  std::size_t memory = std::size_t{1} << 30;
  std::vector<std::string> without_types;
  bool synchronous = false;

  // Throws std::invalid_argument with the variable, its value and the expected format.
  static Config parse(const char* count, const char* memory, const char* visible, const char* without_types = nullptr,
                      const char* synchronous = nullptr);
  static const Config& get();
};

}  // namespace soft
