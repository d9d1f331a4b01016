// What each process uses of the simulated devices, where NVML in any process of the same user can read it.
//
// A process that uses a device has a file of one page, /dev/shm/simcuda-UID/PID-START, mapped while it lives. START is
// the process's start time in /proc, so that a reader knows a file that a killed process left behind, and removes it.
// SIMCUDA_LEDGER names another folder.
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
  std::atomic<std::uint64_t> busy;     // nanoseconds in which work ran, up to the last time that none did
  std::atomic<std::int64_t> since;     // steady clock; since when work has been running, if any is
  std::atomic<std::uint32_t> running;  // pieces of work that run now
  std::atomic<std::uint32_t> context;  // whether the process has a context on the device
};

struct LedgerPage {
  static constexpr std::uint64_t magic_value = 0x3130756463206d69;  // the layout's version is in it
  std::uint64_t magic;
  LedgerDevice devices[machine::most_devices];  // by the index that counts all devices of the machine
};
static_assert(sizeof(LedgerPage) <= 4096 && std::atomic<std::uint64_t>::is_always_lock_free);

inline std::string ledger_folder() {
  if (const char* folder = std::getenv("SIMCUDA_LEDGER"); folder != nullptr && *folder != 0) return folder;
  return "/dev/shm/simcuda-" + std::to_string(getuid());
}

// The start time of a process, in clock ticks since the boot; empty if there is no such process.
inline std::string process_start(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The second field is the name in parentheses, and may hold spaces and parentheses itself.
  auto place = text.rfind(')');
  for (int field = 2; field < 22 && place != std::string::npos; ++field) place = text.find(' ', place + 1);
  if (place == std::string::npos) return {};
  return text.substr(place + 1, text.find(' ', place + 1) - place - 1);
}

}  // namespace simcuda
