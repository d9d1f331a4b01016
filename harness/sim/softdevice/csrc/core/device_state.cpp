#include "device_state.h"

#include "process.h"

namespace soft {

void DeviceState::fail(Code code, const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_.emplace(code, "device " + std::to_string(index_) + ": " + what);
  failed_.store(true, std::memory_order_release);
}

std::optional<Failure> DeviceState::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return failure_;
}

void DeviceState::check() const {
  check_not_forked();
  if (const auto failure = this->failure()) throw Failure(*failure);
}

}  // namespace soft
