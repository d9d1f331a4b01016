#include "usage.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>

#include "simcuda_ledger.h"

namespace simcuda::nvml {

namespace {

constexpr std::int64_t window = 500'000'000, least = 50'000'000;  // nanoseconds

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Copies one device's entry from a file. Returns false if the file is not a page of the ledger, or not complete yet.
struct Copied {
  std::uint64_t magic, used, busy;
  std::int64_t since;
  std::uint32_t running, context;
};
bool read_page(const char* path, int device, Copied& copy) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  alignas(LedgerPage) std::byte bytes[sizeof(LedgerPage)];
  const bool whole = pread(file, bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes);
  close(file);
  if (!whole) return false;
  const auto& page = *reinterpret_cast<const LedgerPage*>(bytes);
  const LedgerDevice& of = page.devices[device];
  copy = {page.magic, of.used, of.busy, of.since, of.running, of.context};
  return copy.magic == LedgerPage::magic_value;
}

struct Sample {
  std::int64_t time;
  std::uint64_t busy;
};

}  // namespace

namespace {

void add(const std::filesystem::path& path, int device, std::int64_t time, Usage& all) {
  const std::string name = path.filename();
  const auto dash = name.find('-');
  unsigned pid = 0;
  if (dash == std::string::npos || std::from_chars(name.data(), name.data() + dash, pid).ec != std::errc()) return;
  if (process_start(name.substr(0, dash)) != name.substr(dash + 1)) {
    unlink(path.c_str());  // the file of a killed process
    return;
  }
  Copied page;
  if (!read_page(path.c_str(), device, page)) return;
  if (page.context != 0) all.processes.push_back({pid, page.used});
  all.used += page.used;
  all.busy += page.busy;
  if (page.running != 0) {
    all.running = true;
    all.busy += static_cast<std::uint64_t>(std::max<std::int64_t>(time - page.since, 0));
  }
}

}  // namespace

Usage usage(int device) noexcept {
  Usage all;
  const std::int64_t time = now();
  try {
    // Processes end and files vanish at any time. A loop over the range would throw for it.
    std::error_code error;
    const std::filesystem::directory_iterator end;
    for (std::filesystem::directory_iterator file(ledger_folder(), error); !error && file != end;
         file.increment(error)) {
      add(file->path(), device, time, all);
    }
  } catch (const std::exception&) {
    return all;  // without memory for the rest
  }
  return all;
}

unsigned utilization(int device) noexcept try {
  static std::mutex mutex;
  static std::deque<Sample> samples[machine::most_devices];
  const Usage read = usage(device);
  const std::int64_t time = now();
  const std::lock_guard lock(mutex);
  auto& known = samples[device];
  // Keeps the latest sample older than the window, so that there is always one to compare with.
  while (known.size() > 1 && known[1].time < time - window) known.pop_front();
  unsigned share = read.running ? 100 : 0;
  if (!known.empty() && known.front().time <= time - least) {
    const double passed = static_cast<double>(time - known.front().time);
    // When a process ends, its busy time disappears from the sum.
    const double worked = static_cast<double>(read.busy) - static_cast<double>(known.front().busy);
    share = static_cast<unsigned>(std::clamp(100 * worked / passed, 0.0, 100.0));
  }
  known.push_back({time, read.busy});
  return share;
} catch (const std::exception&) {
  return 0;
}

}  // namespace simcuda::nvml
