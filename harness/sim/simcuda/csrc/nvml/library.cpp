// The library: initialisation and shutdown, errors and versions.

#include <cuda.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "nvml.h"
#include "state.h"

namespace simcuda::nvml {

namespace {

std::atomic<int> users{0};
Entry entries[machine::most_devices];
int count = 0;
std::size_t memory = 0;

Status copy(const char* text, char* to, unsigned length) {
  if (to == nullptr) return invalid_argument;
  if (std::strlen(text) >= length) return insufficient_size;
  std::strcpy(to, text);
  return success;
}

}  // namespace

Status ready() { return users > 0 ? success : uninitialized; }

Status check(Device device) {
  if (const Status status = ready()) return status;
  if (device < entries || device >= entries + count) return invalid_argument;
  return state(device->index, "lost", 0) != 0 ? gpu_is_lost : success;
}

Device device_at(int index) { return &entries[index]; }
int device_count() { return count; }
std::size_t device_memory() { return memory; }

NVML_API Status nvmlInitWithFlags(unsigned) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (users == 0) {
    const auto devices = machine::parse_count(std::getenv("SIMCUDA_DEVICE_COUNT"));
    const auto bytes = machine::parse_memory(std::getenv("SIMCUDA_DEVICE_MEMORY"));
    if (!devices || !bytes) return invalid_argument;
    count = *devices;
    memory = *bytes;
    for (int index = 0; index < count; ++index) entries[index].index = index;
  }
  ++users;
  return success;
}

NVML_API Status nvmlInit_v2() { return nvmlInitWithFlags(0); }
NVML_API Status nvmlInit() { return nvmlInitWithFlags(0); }

NVML_API Status nvmlShutdown() {
  if (const Status status = ready()) return status;
  --users;
  return success;
}

// The texts are those of NVIDIA's library.
NVML_API const char* nvmlErrorString(int status) {
  switch (status) {
    case 0:
      return "Success";
    case 1:
      return "Uninitialized";
    case 2:
      return "Invalid Argument";
    case 3:
      return "Not Supported";
    case 4:
      return "Insufficient Permissions";
    case 5:
      return "Already Initialized";
    case 6:
      return "Not Found";
    case 7:
      return "Insufficient Size";
    case 8:
      return "Insufficient External Power";
    case 9:
      return "Driver Not Loaded";
    case 10:
      return "Timeout";
    case 11:
      return "Interrupt Request Issue";
    case 12:
      return "NVML Shared Library Not Found";
    case 13:
      return "Function Not Found";
    case 14:
      return "Corrupted infoROM";
    case 15:
      return "GPU is lost";
    case 16:
      return "GPU requires restart";
    case 17:
      return "The operating system has blocked the request.";
    case 18:
      return "RM has detected an NVML/RM version mismatch.";
    case 19:
      return "Resource is in use";
    case 20:
      return "Insufficient Memory";
    case 21:
      return "No data";
    case 25:
      return "Argument version mismatch";
    case 26:
      return "Deprecated";
    default:
      return "Unknown Error";
  }
}

NVML_API Status nvmlSystemGetDriverVersion(char* text, unsigned length) {
  const Status status = ready();
  return status ? status : copy(machine::driver_version, text, length);
}

NVML_API Status nvmlSystemGetNVMLVersion(char* text, unsigned length) {
  char version[32];
  std::snprintf(version, sizeof version, "%d.%s", CUDA_VERSION / 1000, machine::driver_version);
  const Status status = ready();
  return status ? status : copy(version, text, length);
}

NVML_API Status nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return invalid_argument;
  *version = CUDA_VERSION;
  return ready();
}
NVML_API Status nvmlSystemGetCudaDriverVersion(int* version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

NVML_API Status nvmlSystemGetProcessName(unsigned pid, char* name, unsigned length) {
  if (const Status status = ready()) return status;
  char path[32], found[4096] = "";
  std::snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  std::FILE* const file = std::fopen(path, "re");
  if (file == nullptr) return not_found;
  const std::size_t read = std::fread(found, 1, sizeof found - 1, file);
  std::fclose(file);
  if (name == nullptr || length == 0) return invalid_argument;
  std::snprintf(name, length, "%s", read == 0 ? "" : found);
  return success;
}

}  // namespace simcuda::nvml
