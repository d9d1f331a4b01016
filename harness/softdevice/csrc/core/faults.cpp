#include "faults.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <locale>
#include <mutex>
#include <sstream>
#include <stdexcept>

namespace soft {

namespace {

constexpr auto fault_count = static_cast<std::size_t>(Fault::count);
static_assert(fault_count <= 64, "the mask of injected faults has 64 bits");

constexpr const char* names[] = {
#define FAULT(name, text) #name,
#include "../faults.def"
#undef FAULT
};

struct Slot {
  std::atomic<double> probability{0.0};
  std::atomic<std::uint64_t> seed{0};
  std::atomic<std::uint64_t> opportunities{0};  // since it was injected
  std::atomic<std::uint64_t> struck{0};         // since the process began
};

// All constant-initialised: SOFT_INJECT is read by a static initialiser.
Slot slots[fault_count];
std::atomic<std::uint64_t> mask{0};
std::mutex injecting;

std::uint64_t bit(Fault fault) { return std::uint64_t{1} << static_cast<unsigned>(fault); }

// The n-th number of the sequence that a seed begins (splitmix64): a function of both, so that threads which ask at the
// same time share one sequence without a lock.
std::uint64_t scrambled(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t value = (seed ^ 0x6a09e667f3bcc909u) + (n + 1) * 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

[[noreturn]] void reject(const std::string& text, const std::string& expected) {
  throw std::invalid_argument("fault '" + text + "': expected " + expected);
}

Fault named(const std::string& name, const std::string& text) {
  for (std::size_t index = 0; index < fault_count; ++index) {
    if (name == names[index]) return static_cast<Fault>(index);
  }
  std::string known;
  for (const char* each : names) known += (known.empty() ? "" : ", ") + std::string(each);
  reject(text, "one of " + known);
}

template <typename Value>
bool read(const std::string& text, Value& value) {
  if (text.empty() || text[0] < '.' || text[0] > '9') return false;  // no signs, no words
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());  // whatever locale the program has chosen
  return (stream >> value) && stream.peek() == std::istringstream::traits_type::eof();
}

Injection parse_one(const std::string& text) {
  Injection injection{};
  const auto comma = text.find(',');
  const std::string head = trimmed(text.substr(0, comma));
  const auto colon = head.find(':');
  injection.fault = named(trimmed(head.substr(0, colon)), text);
  if (colon != std::string::npos) {
    const bool is_number = read(trimmed(head.substr(colon + 1)), injection.probability);
    if (!is_number || !(injection.probability >= 0.0 && injection.probability <= 1.0)) {
      reject(text, "a probability from 0 to 1 after the colon");
    }
  }
  if (comma != std::string::npos) {
    const std::string tail = trimmed(text.substr(comma + 1));
    const std::string key = "seed=";
    if (tail.compare(0, key.size(), key) != 0 || !read(tail.substr(key.size()), injection.seed)) {
      reject(text, "seed=N with a whole number N after the comma");
    }
  }
  return injection;
}

const bool loaded = [] {
  if (const char* text = std::getenv("SOFT_INJECT")) {
    try {
      inject(parse_injections(text));
    } catch (const std::invalid_argument&) {
      return false;  // an exception here would end the process; Config::get() throws it
    }
  }
  return true;
}();

}  // namespace

const char* fault_name(Fault fault) { return names[static_cast<std::size_t>(fault)]; }

std::vector<Injection> parse_injections(const std::string& text) {
  std::vector<Injection> injections;
  std::uint64_t seen = 0;
  std::size_t from = 0;
  while (from <= text.size()) {
    const auto semicolon = std::min(text.find(';', from), text.size());
    const std::string part = trimmed(text.substr(from, semicolon - from));
    from = semicolon + 1;
    if (part.empty()) continue;
    const Injection injection = parse_one(part);
    if (seen & bit(injection.fault)) reject(part, "each fault once");
    seen |= bit(injection.fault);
    injections.push_back(injection);
  }
  return injections;
}

void inject(const std::vector<Injection>& injections) {
  const std::lock_guard lock(injecting);
  mask.store(0, std::memory_order_release);
  std::uint64_t bits = 0;
  for (const Injection& injection : injections) {
    Slot& slot = slots[static_cast<std::size_t>(injection.fault)];
    slot.probability.store(injection.probability, std::memory_order_relaxed);
    slot.seed.store(injection.seed, std::memory_order_relaxed);
    slot.opportunities.store(0, std::memory_order_relaxed);
    bits |= bit(injection.fault);
  }
  mask.store(bits, std::memory_order_release);
}

bool injected(Fault fault) { return (mask.load(std::memory_order_relaxed) & bit(fault)) != 0; }

bool strikes(Fault fault) {
  if (!injected(fault)) return false;
  if ((mask.load(std::memory_order_acquire) & bit(fault)) == 0) return false;  // its slot is written before its bit
  Slot& slot = slots[static_cast<std::size_t>(fault)];
  const std::uint64_t n = slot.opportunities.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t drawn = scrambled(slot.seed.load(std::memory_order_relaxed), n);
  // 53 bits: a number from 0 to just below 1, so that probability 1 always strikes and 0 never does.
  if (static_cast<double>(drawn >> 11) * 0x1p-53 >= slot.probability.load(std::memory_order_relaxed)) return false;
  slot.struck.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::uint64_t times_struck(Fault fault) {
  return slots[static_cast<std::size_t>(fault)].struck.load(std::memory_order_relaxed);
}

}  // namespace soft
