// Values that change while a device works: memory, processes, load, clocks, power, temperature and errors.

#include <algorithm>
#include <chrono>

#include "nvml.h"
#include "state.h"
#include "usage.h"

namespace simcuda::nvml {

namespace {

struct Memory {
  unsigned long long total, free, used;
};
struct Memory2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct Utilization {
  unsigned gpu, memory;  // percentages of the time
};
struct Temperature {
  unsigned version, sensor;
  int degrees;
};

// The data sheet's values of an H100, and what nvidia-smi shows of an idle one.
constexpr unsigned clock_graphics = 0, clock_sm = 1, clock_memory = 2, clock_video = 3;
constexpr unsigned rest_mhz = 1095, most_mhz = 1980, memory_mhz = 2619, video_mhz = 1545;
constexpr unsigned rest_milliwatts = 72'000, most_milliwatts = 650'000, limit_milliwatts = 700'000;
constexpr int rest_degrees = 32, rise_degrees = 28;

Memory memory_of(Device device) {
  const unsigned long long total = device_memory();
  // The memory limit applies to each process, so several processes together can exceed the device's memory.
  const unsigned long long used = std::min<unsigned long long>(usage(device->index).used, total);
  return {total, total - used, used};
}

int degrees(Device device) {
  const int warm = rest_degrees + rise_degrees * static_cast<int>(utilization(device->index)) / 100;
  return static_cast<int>(state(device->index, "temperature", warm));
}

Status clock(Device device, unsigned domain, unsigned* mhz, bool most) {
  if (const Status status = check(device)) return status;
  if (domain == clock_memory) return give(device, mhz, memory_mhz);
  if (domain == clock_video) return give(device, mhz, video_mhz);
  if (domain != clock_sm && domain != clock_graphics) return invalid_argument;
  return give(device, mhz, most || utilization(device->index) > 0 ? most_mhz : rest_mhz);
}

}  // namespace

NVML_API Status nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
  if (const Status status = check(device)) return status;
  return give(device, memory, memory_of(device));
}

NVML_API Status nvmlDeviceGetMemoryInfo_v2(Device device, Memory2* memory) {
  if (const Status status = check(device)) return status;
  if (memory == nullptr) return invalid_argument;
  if (memory->version != version_of(sizeof(Memory2), 2)) return argument_version_mismatch;
  const auto [total, free, used] = memory_of(device);
  *memory = {memory->version, total, 0, free, used};
  return success;
}

NVML_API Status nvmlDeviceGetBAR1MemoryInfo(Device device, Memory* memory) {
  if (const Status status = check(device)) return status;
  const unsigned long long total = device_memory();
  return give(device, memory, Memory{total, total, 0});
}

NVML_API Status nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned* count, Process* processes) {
  if (const Status status = check(device)) return status;
  if (count == nullptr) return invalid_argument;
  const auto found = usage(device->index).processes;
  const unsigned room = processes == nullptr ? 0 : *count;
  *count = static_cast<unsigned>(found.size());
  if (found.size() > room) return insufficient_size;
  for (const auto& each : found) *processes++ = {each.pid, each.used, no_instance, no_instance};
  return success;
}
NVML_API Status nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned* count, Process* processes) {
  return nvmlDeviceGetComputeRunningProcesses_v3(device, count, processes);
}

// The first version's structure ends after the used memory.
NVML_API Status nvmlDeviceGetComputeRunningProcesses(Device device, unsigned* count, void* processes) {
  struct Process1 {
    unsigned pid;
    unsigned long long used;
  };
  if (const Status status = check(device)) return status;
  if (count == nullptr) return invalid_argument;
  const auto found = usage(device->index).processes;
  const unsigned room = processes == nullptr ? 0 : *count;
  *count = static_cast<unsigned>(found.size());
  if (found.size() > room) return insufficient_size;
  auto* to = static_cast<Process1*>(processes);
  for (const auto& each : found) *to++ = {each.pid, each.used};
  return success;
}

static Status no_processes(Device device, unsigned* count) {
  const Status status = check(device);
  return status ? status : give(device, count, 0U);
}
NVML_API Status nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned* count, Process*) {
  return no_processes(device, count);
}
NVML_API Status nvmlDeviceGetGraphicsRunningProcesses_v2(Device device, unsigned* count, Process*) {
  return no_processes(device, count);
}
NVML_API Status nvmlDeviceGetMPSComputeRunningProcesses_v3(Device device, unsigned* count, Process*) {
  return no_processes(device, count);
}

NVML_API Status nvmlDeviceGetUtilizationRates(Device device, Utilization* rates) {
  if (const Status status = check(device)) return status;
  const unsigned busy = utilization(device->index);
  return give(device, rates, Utilization{busy, busy / 2});
}

NVML_API Status nvmlDeviceGetClockInfo(Device device, unsigned domain, unsigned* mhz) {
  return clock(device, domain, mhz, false);
}
NVML_API Status nvmlDeviceGetMaxClockInfo(Device device, unsigned domain, unsigned* mhz) {
  return clock(device, domain, mhz, true);
}
NVML_API Status nvmlDeviceGetClock(Device device, unsigned domain, unsigned id, unsigned* mhz) {
  return clock(device, domain, mhz, id != 0);  // 0: the current clock
}
NVML_API Status nvmlDeviceGetApplicationsClock(Device device, unsigned domain, unsigned* mhz) {
  return clock(device, domain, mhz, true);
}

NVML_API Status nvmlDeviceGetPerformanceState(Device device, unsigned* number) {
  const Status status = check(device);
  return status ? status : give(device, number, 0U);
}
NVML_API Status nvmlDeviceGetPowerState(Device device, unsigned* number) {
  return nvmlDeviceGetPerformanceState(device, number);
}

NVML_API Status nvmlDeviceGetPowerUsage(Device device, unsigned* milliwatts) {
  if (const Status status = check(device)) return status;
  const unsigned rise = (most_milliwatts - rest_milliwatts) / 100;
  return give(device, milliwatts, rest_milliwatts + rise * utilization(device->index));
}
// That of an idle device since the machine started.
NVML_API Status nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long* millijoules) {
  if (const Status status = check(device)) return status;
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(since).count();
  return give(device, millijoules, static_cast<unsigned long long>(milliseconds) * rest_milliwatts / 1000);
}
NVML_API Status nvmlDeviceGetPcieThroughput(Device device, unsigned counter, unsigned* kilobytes_per_second) {
  if (counter > 1) return invalid_argument;
  const Status status = check(device);
  return status ? status : give(device, kilobytes_per_second, 0U);
}
static Status power_limit(Device device, unsigned* milliwatts) {
  const Status status = check(device);
  return status ? status : give(device, milliwatts, limit_milliwatts);
}
NVML_API Status nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned* limit) { return power_limit(device, limit); }
NVML_API Status nvmlDeviceGetPowerManagementLimit(Device device, unsigned* limit) { return power_limit(device, limit); }
NVML_API Status nvmlDeviceGetPowerManagementDefaultLimit(Device device, unsigned* limit) {
  return power_limit(device, limit);
}
NVML_API Status nvmlDeviceGetPowerManagementLimitConstraints(Device device, unsigned* least, unsigned* most) {
  if (const Status status = power_limit(device, most)) return status;
  return give(device, least, 200'000U);
}

NVML_API Status nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned* answer) {
  if (const Status status = check(device)) return status;
  if (sensor != 0) return invalid_argument;
  return give(device, answer, static_cast<unsigned>(degrees(device)));
}
NVML_API Status nvmlDeviceGetTemperatureV(Device device, Temperature* answer) {
  if (const Status status = check(device)) return status;
  if (answer == nullptr || answer->sensor != 0) return invalid_argument;
  if (answer->version != version_of(sizeof(Temperature), 1)) return argument_version_mismatch;
  answer->degrees = degrees(device);
  return success;
}
NVML_API Status nvmlDeviceGetTemperatureThreshold(Device device, unsigned threshold, unsigned* answer) {
  if (const Status status = check(device)) return status;
  static constexpr unsigned degrees_of[] = {92, 89, 95, 87};  // shutdown, slowdown, maxima of the memory and of the GPU
  return threshold < std::size(degrees_of) ? give(device, answer, degrees_of[threshold]) : not_supported;
}

NVML_API Status nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long* reasons) {
  if (const Status status = check(device)) return status;
  return give(device, reasons, static_cast<unsigned long long>(state(device->index, "throttle", 0)));
}
NVML_API Status nvmlDeviceGetCurrentClocksThrottleReasons(Device device, unsigned long long* reasons) {
  return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

NVML_API Status nvmlDeviceGetTotalEccErrors(Device device, unsigned type, unsigned counter, unsigned long long* count) {
  if (const Status status = check(device)) return status;
  if (type > 1 || counter > 1) return invalid_argument;
  const char* word = counter == 1 ? "ecc_aggregate" : type == 0 ? "ecc_corrected" : "ecc_uncorrected";
  return give(device, count,
              static_cast<unsigned long long>(type == 0 && counter == 1 ? 0 : state(device->index, word, 0)));
}

NVML_API Status nvmlDeviceGetRemappedRows(Device device, unsigned* correctable, unsigned* uncorrectable,
                                          unsigned* pending, unsigned* failed) {
  if (const Status status = check(device)) return status;
  if (!correctable || !uncorrectable || !pending || !failed) return invalid_argument;
  *correctable = static_cast<unsigned>(state(device->index, "rows_correctable", 0));
  *uncorrectable = static_cast<unsigned>(state(device->index, "rows_uncorrectable", 0));
  *pending = static_cast<unsigned>(state(device->index, "rows_pending", 0));
  *failed = static_cast<unsigned>(state(device->index, "rows_failed", 0));
  return success;
}

NVML_API Status nvmlDeviceGetPcieReplayCounter(Device device, unsigned* count) {
  if (const Status status = check(device)) return status;
  return give(device, count, static_cast<unsigned>(state(device->index, "replays", 0)));
}

}  // namespace simcuda::nvml
