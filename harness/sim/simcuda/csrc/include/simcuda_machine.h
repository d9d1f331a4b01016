// The simulated machine: the number of devices, and their names. CUDA, the driver and NVML must agree on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "../../../softdevice/csrc/core/amounts.h"

namespace simcuda::machine {

// SIMCUDA_DEVICE_COUNT   number of devices, 0 to 64; 2 if not set
// SIMCUDA_DEVICE_MEMORY  bytes per device, or with the suffix KiB, MiB, GiB; 2 GiB if not set
constexpr int default_count = 2;
constexpr int most_devices = 64;
constexpr std::size_t default_memory = std::size_t{2} << 30;

constexpr const char* name = "Simulated H100 (no GPU)";
constexpr int compute_major = 9, compute_minor = 0;
constexpr const char* driver_version = "580.00";

// Returns nothing if the text is not valid.
inline std::optional<int> parse_count(const char* text) {
  if (text == nullptr) return default_count;
  const auto count = amounts::number(amounts::trimmed(text));
  if (!count || *count > most_devices) return std::nullopt;
  return static_cast<int>(*count);
}

inline std::optional<std::size_t> parse_memory(const char* text) {
  if (text == nullptr) return default_memory;
  return amounts::memory(text);
}

// `index` counts all devices of the machine; CUDA_VISIBLE_DEVICES does not change it.
inline std::string uuid(int index) {
  char text[48];
  std::snprintf(text, sizeof text, "GPU-51ed0000-0000-4000-8000-%012d", index);
  return text;
}

inline void uuid_bytes(int index, unsigned char (&bytes)[16]) {
  const std::string text = uuid(index);
  std::size_t place = 4;  // after "GPU-"
  for (unsigned char& byte : bytes) {
    if (text[place] == '-') ++place;
    byte = static_cast<unsigned char>(std::stoi(text.substr(place, 2), nullptr, 16));
    place += 2;
  }
}

constexpr int pci_domain = 0, pci_device = 0;
inline int pci_bus(int index) { return index + 1; }

}  // namespace simcuda::machine
