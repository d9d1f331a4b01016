// Objects that programs hold by handle. A value that is not a handle, or no longer one, is detected.
#pragma once

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace simcuda {

template <typename Object>
class Handles {
 public:
  // The handle is the object's address.
  void add(std::shared_ptr<Object> object) {
    const std::unique_lock lock(mutex_);
    const void* const key = object.get();
    objects_[key] = std::move(object);
  }
  // Returns null if the handle is unknown.
  std::shared_ptr<Object> find(const void* handle) const {
    const std::shared_lock lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  // Removes the object and returns it; null if the handle is unknown.
  std::shared_ptr<Object> remove(const void* handle) {
    const std::unique_lock lock(mutex_);
    const auto found = objects_.find(handle);
    if (found == objects_.end()) return nullptr;
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<Object>> objects_;
};

}  // namespace simcuda
