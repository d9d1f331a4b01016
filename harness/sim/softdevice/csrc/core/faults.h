// Faults on demand: what a broken device would do, each at the one place that its name says.
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
// with its probability, 1 when not given, drawn from a generator of its own that starts at its seed, 0 when not given.
struct Injection {
  Fault fault;
  double probability = 1.0;
  std::uint64_t seed = 0;
};

// Throws std::invalid_argument that names the text and what was expected.
std::vector<Injection> parse_injections(const std::string& text);

// Replaces what is injected in this process; thread-safe. At load the value of SOFT_INJECT is injected.
void inject(const std::vector<Injection>& injections);

// Whether the fault is injected at all, with whatever probability.
bool injected(Fault fault);

// Whether the fault happens now. Costs one relaxed load while nothing is injected. Each true is counted.
bool strikes(Fault fault);
std::uint64_t times_struck(Fault fault);

}  // namespace soft
