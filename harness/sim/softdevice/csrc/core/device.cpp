#include "device.h"

#include <exception>
#include <stdexcept>
#include <utility>

#include "capture.h"
#include "config.h"
#include "faults.h"
#include "process.h"

namespace soft {

namespace {

using Devices = std::vector<std::unique_ptr<Device>>;

// Never destroyed: threads of streams use them until the process ends. Throws std::invalid_argument.
const Devices& devices() {
  static const Devices* const devices = [] {
    auto made = std::make_unique<Devices>();
    const Config& config = Config::get();
    for (const std::string& uuid : config.uuids) {
      made->push_back(std::make_unique<Device>(static_cast<int>(made->size()), uuid, config.memory));
    }
    return made.release();
  }();
  return *devices;
}

thread_local int chosen_device = 0;
// By device; null if the thread uses the default stream.
thread_local std::vector<Stream*> chosen_streams;

}  // namespace

Device::Device(int index, std::string uuid, std::size_t memory)
    : DeviceState(index), uuid_(std::move(uuid)), streams_(*this), allocator_(*this, streams_, memory) {}

void Device::synchronize() {
  check();
  forbid_while_capturing("a device's synchronize");
  if (!strikes(Fault::synchronize_early)) drain();
  check();
}

int device_count() noexcept {
  try {
    return static_cast<int>(devices().size());
  } catch (const std::exception&) {
    return 0;  // device() throws the reason
  }
}

Device& device(int index) {
  const Devices* all = nullptr;
  try {
    all = &devices();
  } catch (const std::invalid_argument& error) {
    throw Failure(Code::invalid, error.what());
  }
  if (index < 0 || static_cast<std::size_t>(index) >= all->size()) {
    throw Failure(Code::invalid, "device " + std::to_string(index) + ": this process sees " +
                                     std::to_string(all->size()) + " devices");
  }
  return *(*all)[static_cast<std::size_t>(index)];
}

int current_device() noexcept { return chosen_device; }

int exchange_device(int index) {
  static_cast<void>(device(index));  // throws if the device does not exist
  return std::exchange(chosen_device, index);
}

Stream& current_stream(int index) {
  const auto place = static_cast<std::size_t>(index);
  if (index >= 0 && place < chosen_streams.size() && chosen_streams[place] != nullptr) return *chosen_streams[place];
  return device(index).stream(Device::default_stream);
}

void set_current_stream(Stream& stream) {
  const auto place = static_cast<std::size_t>(stream.device().index());
  if (chosen_streams.size() <= place) chosen_streams.resize(place + 1, nullptr);
  chosen_streams[place] = &stream;
}

void abandon() {
  if (!forked()) pool().abandon(work::for_ever);  // in a fork, the threads stay with the parent
}

}  // namespace soft
