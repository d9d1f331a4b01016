// Each process's use of the simulated devices, which NVML can read in any process of the same user.
//
// harness/sim/simcuda/program.py reads the same layout.
//
// A process that uses a device has a file of one page, /dev/shm/simcuda-UID/PID-START, which is mapped until the
// process ends. START is the process's start time in /proc: a reader recognises a file that a killed process left
// behind by it, and removes the file. SIMCUDA_LEDGER names another folder.
//
// SIMCUDA_RECORD names a folder on the same file system that gets a link to each page, which nobody removes: what
// processes have used can be read after their end, however they ended.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "simcuda_machine.h"

namespace simcuda {

struct LedgerDevice {
  std::atomic<std::uint64_t> used;     // bytes of device memory
  std::atomic<std::uint64_t> peak;     // the most that were in use at one time
  std::atomic<std::uint64_t> kernels;  // launched, also by launches of graphs
  std::atomic<std::uint64_t> busy;     // nanoseconds in which work ran, up to the last time when none ran
  std::atomic<std::int64_t> since;     // steady clock: the time since which work has been running, if any is
  std::atomic<std::uint32_t> running;  // pieces of work that run now
  std::atomic<std::uint32_t> context;  // whether the process has a context on the device
};

// What programs make and have not destroyed yet.
enum class LedgerObject { stream, event, graph, executable_graph };
constexpr int ledger_objects = 4;

struct LedgerPage {
  static constexpr std::uint64_t magic_value = 0x3230756463206d69;  // contains the layout's version
  std::uint64_t magic;
  std::atomic<std::int64_t> objects[ledger_objects];
  LedgerDevice devices[machine::most_devices];  // by the index among all devices of the machine
};
static_assert(sizeof(LedgerPage) <= 4096 && std::atomic<std::uint64_t>::is_always_lock_free);

inline std::string ledger_folder() {
  if (const char* folder = std::getenv("SIMCUDA_LEDGER"); folder != nullptr && *folder != 0) return folder;
  return "/dev/shm/simcuda-" + std::to_string(getuid());
}

// Returns the start time of a process, in clock ticks since the boot; empty if there is no such process.
inline std::string process_start(const std::string& pid) {
  // Not by a stream of C++: its iterators throw if the process ends between the opening and the reading.
  const int file = open(("/proc/" + pid + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  char bytes[1024];  // the longest line has 52 numbers and a name of 64 bytes
  const ssize_t size = read(file, bytes, sizeof bytes);
  close(file);
  if (size <= 0) return {};
  const std::string text(bytes, static_cast<std::size_t>(size));
  // The second field is the name in parentheses, which may itself contain spaces and parentheses.
  auto place = text.rfind(')');
  for (int field = 2; field < 22 && place != std::string::npos; ++field) place = text.find(' ', place + 1);
  if (place == std::string::npos) return {};
  return text.substr(place + 1, text.find(' ', place + 1) - place - 1);
}

}  // namespace simcuda
