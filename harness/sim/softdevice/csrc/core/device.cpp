#include "device.h"

#include <exception>
#include <stdexcept>
#include <system_error>

#include "capture.h"
#include "config.h"
#include "faults.h"
#include "process.h"

namespace soft {

namespace {

constexpr std::int64_t last_stream = 2 * Device::streams_per_priority;

using Devices = std::vector<std::unique_ptr<Device>>;

// Leaked: streams' threads use them for as long as the process lives. Throws std::invalid_argument.
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
// By device; null where the thread uses the default stream.
thread_local std::vector<Stream*> chosen_streams;

}  // namespace

Device::Device(int index, std::string uuid, std::size_t memory)
    : index_(index), uuid_(std::move(uuid)), allocator_(std::make_unique<Allocator>(*this, memory)) {}

bool Device::awake() const { return awake_.load(std::memory_order_acquire); }

void Device::wake() {
  check_not_forked();
  if (awake()) return;
  std::call_once(woken_, [this] {
    watch_forks();
    try {
      pool().start();
    } catch (const std::system_error& error) {
      throw Failure(Code::lost, "cannot wake device " + std::to_string(index_) + ": " + error.what());
    }
    for (std::int64_t id = 0; id <= last_stream; ++id) {
      const bool high = id > streams_per_priority;
      streams_.push_back(std::make_unique<Stream>(*this, id, high ? Stream::Priority::high : Stream::Priority::normal));
    }
    awake_.store(true, std::memory_order_release);
  });
}

Stream& Device::stream(std::int64_t id) {
  if (id < 0 || id > last_stream) {
    throw Failure(Code::invalid, "stream " + std::to_string(id) + " of device " + std::to_string(index_) +
                                     ": expected an id from 0 to " + std::to_string(last_stream));
  }
  wake();
  return *streams_[static_cast<std::size_t>(id)];
}

Stream& Device::next_stream(Stream::Priority priority) {
  const bool high = priority == Stream::Priority::high;
  const unsigned turn = next_[high ? 1 : 0].fetch_add(1, std::memory_order_relaxed) % streams_per_priority;
  return stream(1 + turn + (high ? streams_per_priority : 0));
}

std::vector<Stream*> Device::streams() {
  std::vector<Stream*> all;
  if (awake()) {
    for (const auto& stream : streams_) all.push_back(stream.get());
  }
  return all;
}

void Device::synchronize() {
  check();
  forbid_while_capturing("a device's synchronize");
  if (!strikes(Fault::synchronize_early)) drain();
  check();
}

void Device::drain() {
  std::vector<std::shared_ptr<Mark>> marks;
  for (Stream* stream : streams()) {
    if (auto mark = stream->fence()) marks.push_back(std::move(mark));
  }
  for (const auto& mark : marks) mark->wait();
}

void Device::fail(Code code, const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_.emplace(code, "device " + std::to_string(index_) + ": " + what);
  failed_.store(true, std::memory_order_release);
}

std::optional<Failure> Device::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Device::check() const {
  check_not_forked();
  if (const auto failure = this->failure()) throw Failure(*failure);
}

int device_count() noexcept {
  try {
    return static_cast<int>(devices().size());
  } catch (const std::exception&) {
    return 0;  // device() tells why
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
  static_cast<void>(device(index));  // throws where there is none
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
  if (!forked()) pool().abandon(work::for_ever);  // in a fork, the threads stayed with the parent
}

}  // namespace soft
