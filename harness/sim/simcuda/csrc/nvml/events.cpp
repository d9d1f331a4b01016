// Events: the Xids that appear in the state file after a set is created.

#include <chrono>
#include <thread>

#include "nvml.h"
#include "state.h"

namespace simcuda::nvml {

namespace {

struct Event {
  Device device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
struct EventSet {
  bool watched[machine::most_devices] = {};
  std::size_t handled = 0;  // number of Xids
};

constexpr unsigned long long xid_events = 8;
constexpr std::chrono::milliseconds interval{10};

// Returns whether there is an event that was not reported yet.
bool next(EventSet& set, Event& event) {
  const auto all = xids();
  while (set.handled < all.size()) {
    const Xid& xid = all[set.handled++];
    if (xid.device < 0 || xid.device >= device_count() || !set.watched[xid.device]) continue;
    event = {device_at(xid.device), xid_events, static_cast<unsigned long long>(xid.number), no_instance, no_instance};
    return true;
  }
  return false;
}

}  // namespace

NVML_API Status nvmlDeviceGetSupportedEventTypes(Device device, unsigned long long* types) {
  if (const Status status = check(device)) return status;
  if (types == nullptr) return invalid_argument;
  *types = xid_events;
  return success;
}

NVML_API Status nvmlEventSetCreate(EventSet** set) {
  if (const Status status = ready()) return status;
  if (set == nullptr) return invalid_argument;
  return guarded([&] {
    const std::size_t handled = xids().size();
    *set = new EventSet;
    (*set)->handled = handled;
    return success;
  });
}

NVML_API Status nvmlDeviceRegisterEvents(Device device, unsigned long long types, EventSet* set) {
  if (const Status status = check(device)) return status;
  if (set == nullptr) return invalid_argument;
  if ((types & ~xid_events) != 0) return not_supported;
  if (types != 0) set->watched[device->index] = true;
  return success;
}

// The state file does not notify of changes, so this polls it.
NVML_API Status nvmlEventSetWait_v2(EventSet* set, Event* event, unsigned milliseconds) {
  if (const Status status = ready()) return status;
  if (set == nullptr || event == nullptr) return invalid_argument;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
  return guarded([&] {
    while (!next(*set, *event)) {
      if (std::chrono::steady_clock::now() >= end) return timeout;
      std::this_thread::sleep_for(interval);
    }
    return success;
  });
}
NVML_API Status nvmlEventSetWait(EventSet* set, Event* event, unsigned milliseconds) {
  return nvmlEventSetWait_v2(set, event, milliseconds);
}

NVML_API Status nvmlEventSetFree(EventSet* set) {
  if (const Status status = ready()) return status;
  delete set;
  return success;
}

}  // namespace simcuda::nvml
