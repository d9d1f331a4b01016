// The values that conditional nodes look at, of the launch that the calling thread runs.
#pragma once

#include <driver_types.h>

#include <unordered_map>

namespace simcuda {

using Conditions = std::unordered_map<cudaGraphConditionalHandle, unsigned>;

// While it lives, the calling thread runs a launch that has these values.
class ConditionScope {
 public:
  explicit ConditionScope(Conditions& conditions);
  ~ConditionScope();
  ConditionScope(const ConditionScope&) = delete;
  ConditionScope& operator=(const ConditionScope&) = delete;

 private:
  Conditions* const before_;
};

// Nothing outside of a launch.
void set_condition(cudaGraphConditionalHandle handle, unsigned value);

}  // namespace simcuda
