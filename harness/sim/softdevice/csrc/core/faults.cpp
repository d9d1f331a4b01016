#include "faults.h"

#include <cstdlib>
#include <stdexcept>

#include "injections.h"

namespace soft {

namespace {

constexpr const char* names[] = {
#define FAULT(name, text) #name,
#include "../faults.def"
#undef FAULT
};

// Constant-initialised, since a static initialiser reads SOFT_INJECT.
faults::Injections of_process(names);

std::size_t index_of(Fault fault) { return static_cast<std::size_t>(fault); }

const bool loaded = [] {
  if (const char* text = std::getenv("SOFT_INJECT")) {
    try {
      inject(parse_injections(text));
    } catch (const std::invalid_argument&) {
      return false;  // an exception here would end the process; Config::get() throws it instead
    }
  }
  return true;
}();

}  // namespace

const char* fault_name(Fault fault) { return of_process.name(index_of(fault)); }

std::vector<Injection> parse_injections(const std::string& text) {
  std::vector<Injection> injections;
  for (const auto& each : of_process.parse(text)) {
    injections.push_back({static_cast<Fault>(each.index), each.probability, each.seed});
  }
  return injections;
}

void inject(const std::vector<Injection>& injections) {
  std::vector<faults::Injection> plain;
  for (const Injection& each : injections) plain.push_back({index_of(each.fault), each.probability, each.seed});
  of_process.inject(plain);
}

bool injected(Fault fault) { return of_process.injected(index_of(fault)); }
bool strikes(Fault fault) { return of_process.strikes(index_of(fault)); }
std::uint64_t times_struck(Fault fault) { return of_process.times_struck(index_of(fault)); }

}  // namespace soft
