#include "device.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "../include/simcuda.h"
#include "../include/simcuda_machine.h"
#include "activity.h"
#include "arena.h"
#include "call.h"
#include "ledger.h"
#include "process.h"
#include "stream.h"

namespace simcuda {

namespace {

thread_local int current = 0;

// The devices that CUDA_VISIBLE_DEVICES leaves, by their numbers in the machine. CUDA Programming Guide, "CUDA
// Environment Variables": indices, or beginnings of UUIDs; what follows an entry that is no device is not visible, and
// a device that is named twice leaves none.
std::vector<int> visible(const char* mask, int count) {
  std::vector<int> numbers;
  if (mask == nullptr) {
    for (int number = 0; number < count; ++number) numbers.push_back(number);
    return numbers;
  }
  std::string_view rest = mask;
  while (true) {
    const auto comma = rest.find(',');
    const std::string_view name = amounts::trimmed(rest.substr(0, comma));
    int found = -1;
    if (const auto index = amounts::number(name)) {
      if (*index < static_cast<std::size_t>(count)) found = static_cast<int>(*index);
    } else if (name.starts_with("GPU-")) {
      for (int number = 0; number < count; ++number) {
        if (!machine::uuid(number).starts_with(name)) continue;
        if (found >= 0) return numbers;  // it could mean either
        found = number;
      }
    }
    if (found < 0) return numbers;
    if (std::find(numbers.begin(), numbers.end(), found) != numbers.end()) return {};
    numbers.push_back(found);
    if (comma == std::string_view::npos) return numbers;
    rest.remove_prefix(comma + 1);
  }
}

// Never destroyed: threads of the pool outlive the destructors of statics.
std::vector<Device*>& devices() {
  static auto* const devices = [] {
    auto* const made = new std::vector<Device*>;
    const char* const count_text = std::getenv("SIMCUDA_DEVICE_COUNT");
    const char* const memory_text = std::getenv("SIMCUDA_DEVICE_MEMORY");
    const auto count = machine::parse_count(count_text);
    const auto memory = machine::parse_memory(memory_text);
    if (!count) {
      std::fprintf(stderr, "SIMCUDA_DEVICE_COUNT='%s': expected a number from 0 to %d; no device is simulated\n",
                   count_text, machine::most_devices);
    }
    if (!memory) {
      std::fprintf(stderr,
                   "SIMCUDA_DEVICE_MEMORY='%s': expected a number of bytes, at least 2 MiB, as in 268435456, 256MiB or "
                   "1GiB; no device is simulated\n",
                   memory_text);
    }
    if (!count || !memory) return made;
    for (const int number : visible(std::getenv("CUDA_VISIBLE_DEVICES"), *count)) {
      made->push_back(new Device(static_cast<int>(made->size()), number, *memory));
    }
    return made;
  }();
  return *devices;
}

}  // namespace

Device::Device(int index, int number, std::size_t memory) : index(index), number(number), memory(memory) {}

void Device::wake() {
  if (awake()) return;
  bool made = false;
  std::call_once(woken_, [this, &made] {
    arena_of(*this).take(context_memory(memory));
    ledger::open_context(number);
    legacy_ = std::make_shared<Stream>(*this, Stream::Kind::legacy, cudaStreamDefault, 0);
    add(legacy_);
    awake_.store(true, std::memory_order_release);
    made = true;
  });
  if (made) activity::tell_context(index);  // an observer may use the device
}

void Device::fail(cudaError_t error, const char* why) {
  cudaError_t none = cudaSuccess;
  if (!error_.compare_exchange_strong(none, error)) return;
  std::fprintf(stderr, "Simulated CUDA: device %d failed, %s (%s): %s\n", index, error_text(error), error_name(error),
               why);
}

std::shared_ptr<Stream> Device::legacy_stream() {
  wake();
  return legacy_;
}

void Device::add(const std::shared_ptr<Stream>& stream) {
  {
    const std::lock_guard lock(mutex_);
    streams_.push_back(stream);
  }
  if (stream->blocking()) {
    const std::lock_guard lock(order_);
    blocking_.push_back(stream->queue_);
  }
}

void Device::remove(Stream& stream) {
  const std::lock_guard lock(mutex_);
  std::erase_if(leaving_, [](const auto& queue) { return queue->idle(); });
  if (!stream.queue_->idle()) leaving_.push_back(stream.queue_);
  std::erase_if(streams_, [&](const auto& one) { return one.get() == &stream; });
}

std::vector<std::shared_ptr<work::Queue>> Device::queues() {
  const std::lock_guard lock(mutex_);
  std::erase_if(leaving_, [](const auto& queue) { return queue->idle(); });
  auto queues = leaving_;
  for (const auto& stream : streams_) queues.push_back(stream->queue_);
  return queues;
}

void Device::drain() {
  std::vector<std::shared_ptr<Mark>> marks;
  for (const auto& queue : queues()) {
    if (auto mark = queue->fence()) marks.push_back(std::move(mark));
  }
  for (const auto& mark : marks) mark->wait();
}

bool Device::idle() {
  for (const auto& queue : queues()) {
    if (!queue->idle()) return false;
  }
  return true;
}

void Device::enable_peer(int other) {
  check(other != index, cudaErrorInvalidDevice);
  device(other);
  if (peers_.fetch_or(1ull << other) & (1ull << other)) throw Error(cudaErrorPeerAccessAlreadyEnabled);
}

void Device::disable_peer(int other) {
  device(other);
  if (!(peers_.fetch_and(~(1ull << other)) & (1ull << other))) throw Error(cudaErrorPeerAccessNotEnabled);
}

int device_count() noexcept { return static_cast<int>(devices().size()); }

Device& device(int index) {
  check(index >= 0 && index < device_count(), cudaErrorInvalidDevice);
  return *devices()[static_cast<std::size_t>(index)];
}

int current_index() noexcept { return device_count() == 0 ? -1 : current; }
void set_current_index(int index) noexcept { current = index; }

Device& current_device() {
  check(device_count() > 0, cudaErrorNoDevice);
  return device(current);
}

}  // namespace simcuda

using namespace simcuda;

SIMCUDA_EXPORT void simcudaFailDevice(int index, int error, const char* why) {
  if (index >= 0 && index < device_count()) device(index).fail(static_cast<cudaError_t>(error), why);
}

SIMCUDA_EXPORT int simcudaHasContext(int index) {
  return initialized() && index >= 0 && index < device_count() && device(index).awake();
}
