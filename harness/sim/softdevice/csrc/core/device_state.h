// The state of a device: its identity, and the error with which it has failed.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "failure.h"

namespace soft {

class DeviceState {
 public:
  explicit DeviceState(int index) : index_(index) {}
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;

  int index() const { return index_; }

  // Sets the sticky error. The first one stays.
  void fail(Code code, const std::string& what);
  std::optional<Failure> failure() const;
  void check() const;  // throws the sticky error

 private:
  const int index_;
  mutable std::mutex mutex_;
  std::optional<Failure> failure_;
  std::atomic<bool> failed_{false};
};

}  // namespace soft
