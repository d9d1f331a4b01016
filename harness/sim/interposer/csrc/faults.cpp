#include "faults.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "../../softdevice/csrc/core/injections.h"
#include "export.h"

namespace interposer {

namespace {

constexpr const char* names[] = {
#define FAULT(name, text) #name,
#include "faults.def"
// In the order of the enumerators in the header.
#include "../../simcuda/csrc/nccl/faults.def"
#undef FAULT
};

faults::Injections all(names);

std::size_t index_of(Fault fault) { return static_cast<std::size_t>(fault); }

// This library is in every program that a case starts. A program with invalid injections must not run, because its
// results would count as those with faults.
const bool loaded = [] {
  if (const char* text = std::getenv("CUDA_INJECT")) {
    try {
      all.inject(all.parse(text));
    } catch (const std::invalid_argument& error) {
      std::fprintf(stderr, "CUDA_INJECT: %s\n", error.what());
      std::_Exit(2);
    }
  }
  return true;
}();

}  // namespace

bool any_injected() { return all.any(); }
bool injected(Fault fault) { return all.injected(index_of(fault)); }
bool strikes(Fault fault) { return all.strikes(index_of(fault)); }

}  // namespace interposer

using namespace interposer;

// For Python: the number of faults, their names, and how often each was triggered in this process.
EXPORT int interposerFaultCount() { return static_cast<int>(Fault::count); }
EXPORT const char* interposerFaultName(int fault) { return all.name(static_cast<std::size_t>(fault)); }
EXPORT unsigned long long interposerTimesStruck(int fault) { return all.times_struck(static_cast<std::size_t>(fault)); }

// For the simulated NCCL: returns whether one of its own faults happens now.
EXPORT int interposerStrikes(const char* name) {
  if (!all.any()) return 0;
  for (std::size_t i = 0; i < all.count(); ++i) {
    if (std::strcmp(all.name(i), name) == 0) return all.strikes(i);
  }
  return 0;
}

// Replaces the injected faults. Returns 0, or 1 for a text that is not a list of injections.
EXPORT int interposerInject(const char* text) {
  try {
    all.inject(all.parse(text));
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
