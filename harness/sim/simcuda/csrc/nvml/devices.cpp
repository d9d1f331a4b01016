// Handles, and the static properties of a device: its name, location and capabilities.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "nvml.h"

namespace simcuda::nvml {

namespace {

struct Pci {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(Pci) == 68);

// The fields common to all versions; later versions append more.
struct Fabric {
  unsigned version;
  unsigned char cluster[16];
  Status status;
  unsigned clique;
  unsigned char state;
};
constexpr unsigned char fabric_not_supported = 0;

constexpr unsigned enabled = 1, disabled = 0;
constexpr unsigned h100_device_id = 0x233010de;
constexpr unsigned p2p_ok = 0, p2p_not_supported = 5, p2p_nvlink = 2, p2p_atomics = 3, p2p_most = 5;

Status copy(std::string_view value, char* to, unsigned length) {
  if (to == nullptr) return invalid_argument;
  if (value.size() >= length) return insufficient_size;
  std::memcpy(to, value.data(), value.size());
  to[value.size()] = 0;
  return success;
}

Status text(Device device, std::string_view value, char* to, unsigned length) {
  const Status status = check(device);
  return status ? status : copy(value, to, length);
}

}  // namespace

NVML_API Status nvmlDeviceGetCount_v2(unsigned* count) {
  if (const Status status = ready()) return status;
  if (count == nullptr) return invalid_argument;
  *count = static_cast<unsigned>(device_count());
  return success;
}
NVML_API Status nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

NVML_API Status nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
  if (const Status status = ready()) return status;
  if (device == nullptr || index >= static_cast<unsigned>(device_count())) return invalid_argument;
  *device = device_at(static_cast<int>(index));
  return check(*device);
}
NVML_API Status nvmlDeviceGetHandleByIndex(unsigned index, Device* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_API Status nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  if (const Status status = ready()) return status;
  if (uuid == nullptr || device == nullptr) return invalid_argument;
  return guarded([&] {
    for (int index = 0; index < device_count(); ++index) {
      if (machine::uuid(index) == uuid) {
        *device = device_at(index);
        return check(*device);
      }
    }
    return not_found;
  });
}

// The format is "domain:bus:device.function", with any number of digits. The domain and the function are optional.
NVML_API Status nvmlDeviceGetHandleByPciBusId_v2(const char* id, Device* device) {
  if (const Status status = ready()) return status;
  if (id == nullptr || device == nullptr) return invalid_argument;
  unsigned domain = 0, bus = 0, slot = 0;
  if (std::sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
    domain = 0;
    if (std::sscanf(id, "%x:%x", &bus, &slot) != 2) return invalid_argument;
  }
  for (int index = 0; index < device_count(); ++index) {
    if (domain == machine::pci_domain && slot == machine::pci_device &&
        bus == static_cast<unsigned>(machine::pci_bus(index))) {
      *device = device_at(index);
      return check(*device);
    }
  }
  return not_found;
}
NVML_API Status nvmlDeviceGetHandleByPciBusId(const char* id, Device* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

NVML_API Status nvmlDeviceGetName(Device device, char* to, unsigned length) {
  return text(device, machine::name, to, length);
}

// Works for a lost device, too, as NVIDIA's library does.
NVML_API Status nvmlDeviceGetUUID(Device device, char* to, unsigned length) {
  if (const Status status = check(device); status != success && status != gpu_is_lost) return status;
  return guarded([&] { return copy(machine::uuid(device->index), to, length); });
}

NVML_API Status nvmlDeviceGetSerial(Device device, char* to, unsigned length) {
  if (const Status status = check(device)) return status;
  char serial[16];
  std::snprintf(serial, sizeof serial, "51ed%d", device->index);
  return copy(serial, to, length);
}
NVML_API Status nvmlDeviceGetVbiosVersion(Device device, char* to, unsigned length) {
  return text(device, "96.00.00.00.00", to, length);
}

NVML_API Status nvmlDeviceGetIndex(Device device, unsigned* index) {
  return device == nullptr ? invalid_argument : give(device, index, static_cast<unsigned>(device->index));
}
NVML_API Status nvmlDeviceGetMinorNumber(Device device, unsigned* minor) { return nvmlDeviceGetIndex(device, minor); }

NVML_API Status nvmlDeviceGetPciInfo_v3(Device device, Pci* pci) {
  if (const Status status = check(device)) return status;
  if (pci == nullptr) return invalid_argument;
  *pci = {};
  pci->domain = machine::pci_domain;
  pci->bus = static_cast<unsigned>(machine::pci_bus(device->index));
  pci->device = machine::pci_device;
  pci->device_id = pci->subsystem_id = h100_device_id;
  std::snprintf(pci->legacy_bus_id, sizeof pci->legacy_bus_id, "%04X:%02X:%02X.0", pci->domain, pci->bus & 0xff,
                pci->device & 0xff);
  std::snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
  return success;
}
NVML_API Status nvmlDeviceGetPciInfo_v2(Device device, Pci* pci) { return nvmlDeviceGetPciInfo_v3(device, pci); }
NVML_API Status nvmlDeviceGetPciInfo(Device device, Pci* pci) { return nvmlDeviceGetPciInfo_v3(device, pci); }

NVML_API Status nvmlDeviceGetCudaComputeCapability(Device device, int* major, int* minor) {
  const Status status = give(device, major, machine::compute_major);
  return status ? status : give(device, minor, machine::compute_minor);
}

NVML_API Status nvmlDeviceGetArchitecture(Device device, unsigned* architecture) {
  return give(device, architecture, 9U);  // Hopper
}
NVML_API Status nvmlDeviceGetBrand(Device device, unsigned* brand) { return give(device, brand, 14U); }     // NVIDIA
NVML_API Status nvmlDeviceGetComputeMode(Device device, unsigned* mode) { return give(device, mode, 0U); }  // default
NVML_API Status nvmlDeviceGetPersistenceMode(Device device, unsigned* mode) { return give(device, mode, enabled); }
NVML_API Status nvmlDeviceGetDisplayActive(Device device, unsigned* state) { return give(device, state, disabled); }
NVML_API Status nvmlDeviceGetDisplayMode(Device device, unsigned* state) { return give(device, state, disabled); }
NVML_API Status nvmlDeviceGetMultiGpuBoard(Device device, unsigned* multiple) { return give(device, multiple, 0U); }
NVML_API Status nvmlDeviceGetMemoryBusWidth(Device device, unsigned* bits) { return give(device, bits, 5120U); }
NVML_API Status nvmlDeviceGetNumGpuCores(Device device, unsigned* cores) { return give(device, cores, 16896U); }
NVML_API Status nvmlDeviceIsMigDeviceHandle(Device device, unsigned* is) { return give(device, is, 0U); }
NVML_API Status nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned* count) { return give(device, count, 0U); }

NVML_API Status nvmlDeviceGetEccMode(Device device, unsigned* current, unsigned* pending) {
  const Status status = give(device, current, enabled);
  return status ? status : give(device, pending, enabled);
}
NVML_API Status nvmlDeviceGetDefaultEccMode(Device device, unsigned* mode) { return give(device, mode, enabled); }

// Devices have peer access, without NVLink and without native atomics.
NVML_API Status nvmlDeviceGetP2PStatus(Device device, Device peer, unsigned way, unsigned* answer) {
  if (const Status status = check(peer)) return status;
  if (way >= p2p_most || device == peer) return invalid_argument;
  return give(device, answer, way == p2p_nvlink || way == p2p_atomics ? p2p_not_supported : p2p_ok);
}

NVML_API Status nvmlDeviceGetTopologyCommonAncestor(Device device, Device peer, unsigned* level) {
  if (const Status status = check(peer)) return status;
  return give(device, level, device == peer ? 0U : 30U);  // internal, or the same NUMA node
}

// The lack of a fabric is reported in the state, not as an error: torch accepts no other answer.
NVML_API Status nvmlDeviceGetGpuFabricInfoV(Device device, Fabric* fabric) {
  if (const Status status = check(device)) return status;
  if (fabric == nullptr) return invalid_argument;
  *fabric = {fabric->version, {}, success, 0, fabric_not_supported};
  return success;
}

// All GPUs are at all processors of the machine, and at its first NUMA node.
NVML_API Status nvmlDeviceGetCpuAffinity(Device device, unsigned words, unsigned long* mask) {
  if (const Status status = check(device)) return status;
  if (words == 0 || mask == nullptr) return invalid_argument;
  constexpr long bits = 8 * sizeof(unsigned long);
  const long processors = sysconf(_SC_NPROCESSORS_CONF);
  if (processors > bits * static_cast<long>(words)) return insufficient_size;
  std::fill(mask, mask + words, 0UL);
  for (long number = 0; number < processors; ++number) mask[number / bits] |= 1UL << (number % bits);
  return success;
}
NVML_API Status nvmlDeviceGetCpuAffinityWithinScope(Device device, unsigned words, unsigned long* mask, unsigned) {
  return nvmlDeviceGetCpuAffinity(device, words, mask);
}
NVML_API Status nvmlDeviceGetMemoryAffinity(Device device, unsigned words, unsigned long* mask, unsigned) {
  if (const Status status = check(device)) return status;
  if (words == 0 || mask == nullptr) return invalid_argument;
  std::fill(mask, mask + words, 0UL);
  *mask = 1;
  return success;
}

constexpr unsigned pcie_generation = 5, pcie_lanes = 16;
NVML_API Status nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned* to) {
  return give(device, to, pcie_generation);
}
NVML_API Status nvmlDeviceGetMaxPcieLinkGeneration(Device device, unsigned* to) {
  return give(device, to, pcie_generation);
}
NVML_API Status nvmlDeviceGetGpuMaxPcieLinkGeneration(Device device, unsigned* to) {
  return give(device, to, pcie_generation);
}
NVML_API Status nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned* to) { return give(device, to, pcie_lanes); }
NVML_API Status nvmlDeviceGetMaxPcieLinkWidth(Device device, unsigned* to) { return give(device, to, pcie_lanes); }

NVML_API Status nvmlDeviceOnSameBoard(Device device, Device other, int* same) {
  if (const Status status = check(other)) return status;
  return give(device, same, device == other ? 1 : 0);
}

}  // namespace simcuda::nvml
