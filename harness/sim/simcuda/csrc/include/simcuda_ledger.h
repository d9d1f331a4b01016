// Each process's use of the simulated devices, which NVML can read in any process of the same user.
//
// A process that uses a device has a file of one page, /dev/shm/simcuda-UID/PID-START, which is mapped until the
// process ends. START is the process's start time in /proc: a reader recognises a file that a killed process left
// behind by it, and removes the file. SIMCUDA_LEDGER names another folder.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "simcuda_machine.h"

namespace simcuda {

struct LedgerDevice {
  std::atomic<std::uint64_t> used;     // bytes of device memory
  std::atomic<std::uint64_t> busy;     // nanoseconds in which work ran, up to the last time when none ran
  std::atomic<std::int64_t> since;     // steady clock: the time since which work has been running, if any is
  std::atomic<std::uint32_t> running;  // pieces of work that run now
  std::atomic<std::uint32_t> context;  // whether the process has a context on the device
};

struct LedgerPage {
  static constexpr std::uint64_t magic_value = 0x3130756463206d69;  // contains the layout's version
  std::uint64_t magic;
  LedgerDevice devices[machine::most_devices];  // by the index among all devices of the machine
};
static_assert(sizeof(LedgerPage) <= 4096 && std::atomic<std::uint64_t>::is_always_lock_free);

inline std::string ledger_folder() {
  if (const char* folder = std::getenv("SIMCUDA_LEDGER"); folder != nullptr && *folder != 0) return folder;
  return "/dev/shm/simcuda-" + std::to_string(getuid());
}

// Returns the start time of a process, in clock ticks since the boot; empty if there is no such process.
inline std::string process_start(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The second field is the name in parentheses, which may itself contain spaces and parentheses.
  auto place = text.rfind(')');
  for (int field = 2; field < 22 && place != std::string::npos; ++field) place = text.find(' ', place + 1);
  if (place == std::string::npos) return {};
  return text.substr(place + 1, text.find(' ', place + 1) - place - 1);
}

}  // namespace simcuda
