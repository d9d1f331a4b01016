// What the environment says of the devices of this process, read once.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace soft {

// SOFT_DEVICE_COUNT      how many devices the machine has, 1 to 64; 2 when not set
// SOFT_DEVICE_MEMORY     bytes of each, or with the suffix KiB, MiB, GiB; 1 GiB when not set
// SOFT_VISIBLE_DEVICES   those this process sees, by index or UUID, in this order; all when not set, none when empty
// SOFT_WITHOUT_TYPES     types that tensors cannot have, as torch names them, with commas; none when not set
// SOFT_SYNCHRONOUS       1: a launch returns once its work is done; 0 when not set
// SOFT_INJECT            faults, see faults.h
struct Config {
  std::vector<std::string> uuids;  // of the visible devices: SOFT-0, SOFT-1, ...
  std::size_t memory = std::size_t{1} << 30;
  std::vector<std::string> without_types;
  bool synchronous = false;

  // Throws std::invalid_argument that names the variable, its value and what was expected.
  static Config parse(const char* count, const char* memory, const char* visible, const char* without_types = nullptr,
                      const char* synchronous = nullptr);
  static const Config& get();
};

}  // namespace soft
