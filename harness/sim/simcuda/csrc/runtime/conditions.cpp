#include "conditions.h"

namespace simcuda {

namespace {

thread_local Conditions* running = nullptr;

}  // namespace

ConditionScope::ConditionScope(Conditions& conditions) : before_(running) { running = &conditions; }
ConditionScope::~ConditionScope() { running = before_; }

void set_condition(cudaGraphConditionalHandle handle, unsigned value) {
  if (running != nullptr) (*running)[handle] = value;
}

}  // namespace simcuda
