// The values of conditional nodes, for the launch that the calling thread runs.
#pragma once

#include <driver_types.h>

#include <unordered_map>

namespace simcuda {

using Conditions = std::unordered_map<cudaGraphConditionalHandle, unsigned>;

// While it exists, the calling thread runs a launch with these values.
class ConditionScope {
 public:
  explicit ConditionScope(Conditions& conditions);
  ~ConditionScope();
  ConditionScope(const ConditionScope&) = delete;
  ConditionScope& operator=(const ConditionScope&) = delete;

 private:
  Conditions* const before_;
};

// Has no effect outside a launch.
void set_condition(cudaGraphConditionalHandle handle, unsigned value);

}  // namespace simcuda
