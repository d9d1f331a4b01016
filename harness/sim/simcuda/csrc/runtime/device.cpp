#include "device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "../include/simcuda_machine.h"
#include "error.h"

namespace simcuda {

namespace {

thread_local int current = 0;

// Returns the devices that CUDA_VISIBLE_DEVICES selects, by their numbers in the machine. CUDA Programming Guide, "CUDA
// Environment Variables": entries are indices or prefixes of UUIDs. An invalid entry ends the list, and a device that
// occurs twice empties it.
std::vector<int> visible(const char* mask, int count) {
  std::vector<int> numbers;
  if (mask == nullptr) {
    for (int number = 0; number < count; ++number) numbers.push_back(number);
    return numbers;
  }
  std::string_view rest = mask;
  while (true) {
    const auto comma = rest.find(',');
    const std::string_view name = amounts::trimmed(rest.substr(0, comma));
    int found = -1;
    if (const auto index = amounts::number(name)) {
      if (*index < static_cast<std::size_t>(count)) found = static_cast<int>(*index);
    } else if (name.starts_with("GPU-")) {
      for (int number = 0; number < count; ++number) {
        if (!machine::uuid(number).starts_with(name)) continue;
        if (found >= 0) return numbers;  // ambiguous
        found = number;
      }
    }
    if (found < 0) return numbers;
    if (std::find(numbers.begin(), numbers.end(), found) != numbers.end()) return {};
    numbers.push_back(found);
    if (comma == std::string_view::npos) return numbers;
    rest.remove_prefix(comma + 1);
  }
}

// Never destroyed: threads of the pool outlive the destructors of statics.
std::vector<Device*>& devices() {
  static auto* const devices = [] {
    auto* const made = new std::vector<Device*>;
    const char* const count_text = std::getenv("SIMCUDA_DEVICE_COUNT");
    const char* const memory_text = std::getenv("SIMCUDA_DEVICE_MEMORY");
    const auto count = machine::parse_count(count_text);
    const auto memory = machine::parse_memory(memory_text);
    if (!count) {
      std::fprintf(stderr, "SIMCUDA_DEVICE_COUNT='%s': expected a number from 0 to %d; no device is simulated\n",
                   count_text, machine::most_devices);
    }
    if (!memory) {
      std::fprintf(stderr,
                   "SIMCUDA_DEVICE_MEMORY='%s': expected a number of bytes, at least 2 MiB, as in 268435456, 256MiB or "
                   "1GiB; no device is simulated\n",
                   memory_text);
    }
    if (!count || !memory) return made;
    for (const int number : visible(std::getenv("CUDA_VISIBLE_DEVICES"), *count)) {
      made->push_back(new Device(static_cast<int>(made->size()), number, *memory));
    }
    return made;
  }();
  return *devices;
}

}  // namespace

Device::Device(int index, int number, std::size_t memory) : index(index), number(number), memory(memory) {}

void Device::fail(cudaError_t error, const char* why) {
  cudaError_t none = cudaSuccess;
  if (!error_.compare_exchange_strong(none, error)) return;
  std::fprintf(stderr, "Simulated CUDA: device %d failed, %s (%s): %s\n", index, error_text(error), error_name(error),
               why);
}

void Device::enable_peer(int other) {
  check(other != index, cudaErrorInvalidDevice);
  device(other);
  if (peers_.fetch_or(1ull << other) & (1ull << other)) throw Error(cudaErrorPeerAccessAlreadyEnabled);
}

void Device::disable_peer(int other) {
  device(other);
  if (!(peers_.fetch_and(~(1ull << other)) & (1ull << other))) throw Error(cudaErrorPeerAccessNotEnabled);
}

int device_count() noexcept { return static_cast<int>(devices().size()); }

Device& device(int index) {
  check(index >= 0 && index < device_count(), cudaErrorInvalidDevice);
  return *devices()[static_cast<std::size_t>(index)];
}

int current_index() noexcept { return device_count() == 0 ? -1 : current; }
void set_current_index(int index) noexcept { current = index; }

Device& current_device() {
  check(device_count() > 0, cudaErrorNoDevice);
  return device(current);
}

}  // namespace simcuda
