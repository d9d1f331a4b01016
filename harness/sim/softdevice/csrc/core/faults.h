// Injected faults: the errors of a broken device, each at the one place in its name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace soft {

enum class Fault : int {
#define FAULT(name, text) name,
#include "../faults.def"
#undef FAULT
  count
};

const char* fault_name(Fault fault);

// SOFT_INJECT is a list, separated by semicolons, of NAME[:probability][,seed=N]. A fault strikes at each opportunity
// with its probability, by default 1. Each fault has its own random generator with its seed, by default 0.
struct Injection {
  Fault fault;
  double probability = 1.0;
  std::uint64_t seed = 0;
};

// Throws std::invalid_argument with the text and the expected format.
std::vector<Injection> parse_injections(const std::string& text);

// Replaces the faults injected in this process; thread-safe. Loading the library injects those of SOFT_INJECT.
void inject(const std::vector<Injection>& injections);

// Returns whether the fault is injected, with any probability.
bool injected(Fault fault);

// Returns whether the fault happens now, and counts it if so. Costs one relaxed load while nothing is injected.
bool strikes(Fault fault);
std::uint64_t times_struck(Fault fault);

}  // namespace soft
