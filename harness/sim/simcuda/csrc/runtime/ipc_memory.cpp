// Device memory of one process in another: CUDA Runtime API, "Device Management", the functions with Ipc in their
// names.
//
// A handle identifies a part of the file that contains the exporting process's device memory. Another process of the
// same user opens that file through /proc, and maps the part.

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "allocations.h"
#include "arena.h"
#include "call.h"
#include "capture.h"
#include "context.h"
#include "device.h"
#include "pages.h"
#include "races.h"
#include "rights.h"
#include "simcuda_ledger.h"

using namespace simcuda;
using Kind = Allocation::Kind;

namespace {

// The contents of a handle.
struct Name {
  static constexpr std::uint64_t magic_value = 0x6d656d6475636d69;
  std::uint64_t magic = magic_value;
  std::uint64_t start = 0;  // start time of the process, which distinguishes it from a later one with the same id
  std::int32_t process = 0, file = 0;
  std::uint64_t offset = 0, size = 0, id = 0;
  std::int32_t device = 0;  // number in the machine

  auto key() const { return std::tie(process, start, id); }
};
static_assert(sizeof(Name) <= sizeof(cudaIpcMemHandle_t));

std::uint64_t start_of(int process) {
  const std::string text = process_start(std::to_string(process));
  return text.empty() ? 0 : std::stoull(text);
}

// Memory that is opened repeatedly is mapped once, and must be closed as often.
struct Opened {
  Name name;
  char* base;
  std::size_t mapped;
  int count;
};
struct OpenedMemory {
  std::mutex mutex;
  std::map<char*, Opened> opened;
};
OpenedMemory& opened_memory() {
  static auto* const memory = new OpenedMemory;
  return *memory;
}

Device& device_of(const Name& name) {
  for (int index = 0; index < device_count(); ++index) {
    if (device(index).number == name.device) return device(index);
  }
  return current_device();
}

char* map(const Name& name) {
  const std::string path = "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.file);
  const int file = start_of(name.process) == name.start ? open(path.c_str(), O_RDWR | O_CLOEXEC) : -1;
  check(file >= 0, cudaErrorMapBufferObjectFailed);
  void* const memory = mmap(nullptr, round_up(name.size, page_size), PROT_READ | PROT_WRITE, MAP_SHARED, file,
                            static_cast<off_t>(name.offset));
  close(file);
  check(memory != MAP_FAILED, cudaErrorMapBufferObjectFailed);
  protect_device_memory(memory, round_up(name.size, page_size), PROT_READ | PROT_WRITE);
  return static_cast<char*>(memory);
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  SIMCUDA_CALL(device, {
    check(handle != nullptr);
    const auto found = find_allocation(address);
    check(found && found->kind == Kind::device);
    races::assume_all_written();
    const Arena& arena = arena_of(*found->device);
    Name name;
    name.process = getpid();
    name.start = start_of(name.process);
    name.file = arena.file();
    name.offset = arena.offset(found->base);
    name.size = found->size;
    name.id = found->id;
    name.device = found->device->number;
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &name, sizeof name);
  });
}

// A process cannot open its own memory: the call returns cudaErrorDeviceUninitialized, as on a GPU.
SIMCUDA_EXPORT cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned flags) {
  SIMCUDA_CALL(device, {
    check(address != nullptr && flags == cudaIpcMemLazyEnablePeerAccess);
    forbid_unsafe("cudaIpcOpenMemHandle");
    Name name;
    std::memcpy(static_cast<void*>(&name), &handle, sizeof name);
    check(name.magic == Name::magic_value);
    check(name.process != getpid(), cudaErrorDeviceUninitialized);
    wake(current_device());
    auto& [mutex, opened] = opened_memory();
    const std::lock_guard lock(mutex);
    for (auto& [base, each] : opened) {
      if (each.name.key() != name.key()) continue;
      ++each.count;
      *address = base;
      return;
    }
    char* const base = map(name);
    opened[base] = {name, base, round_up(name.size, page_size), 1};
    add_allocation({base, name.size, Kind::opened, &device_of(name)});
    *address = base;
  });
}

SIMCUDA_EXPORT cudaError_t cudaIpcCloseMemHandle(void* address) {
  SIMCUDA_CALL(device, {
    forbid_unsafe("cudaIpcCloseMemHandle");
    const auto found = find_allocation(address);
    check(found && found->kind == Kind::opened && found->base == address);
    drain(*found->device);
    drain(current_device());
    auto& [mutex, opened] = opened_memory();
    const std::lock_guard lock(mutex);
    const auto place = opened.find(static_cast<char*>(address));
    check(place != opened.end());
    if (--place->second.count > 0) return;
    remove_allocation(address, {Kind::opened});
    munmap(place->second.base, place->second.mapped);
    opened.erase(place);
  });
}
