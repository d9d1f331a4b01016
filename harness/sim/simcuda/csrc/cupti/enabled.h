// What the program has enabled for each function of the runtime or the driver, by the function's number.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>

#include "names.h"

namespace simcuda::cupti {

using Enabled = std::array<std::atomic<bool>, most_ids>;

inline bool any(const Enabled& functions) {
  return std::any_of(functions.begin(), functions.end(),
                     [](const auto& one) { return one.load(std::memory_order_relaxed); });
}

}  // namespace simcuda::cupti
