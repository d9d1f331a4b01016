#include "injections.h"

#include <algorithm>
#include <locale>
#include <sstream>
#include <stdexcept>

namespace faults {

namespace {

// Returns the n-th number of a seed's sequence (splitmix64). It depends only on the two, so threads share a sequence
// without a lock.
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

template <typename Value>
bool read(const std::string& text, Value& value) {
  if (text.empty() || text[0] < '.' || text[0] > '9') return false;  // no signs and no words
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());  // regardless of the program's locale
  return (stream >> value) && stream.peek() == std::istringstream::traits_type::eof();
}

}  // namespace

std::size_t Injections::named(const std::string& name, const std::string& text) const {
  for (std::size_t index = 0; index < count_; ++index) {
    if (name == names_[index]) return index;
  }
  std::string known;
  for (std::size_t index = 0; index < count_; ++index)
    known += (known.empty() ? "" : ", ") + std::string(names_[index]);
  reject(text, "one of " + known);
}

Injection Injections::parse_one(const std::string& text) const {
  Injection injection{0};
  const auto comma = text.find(',');
  const std::string head = trimmed(text.substr(0, comma));
  const auto colon = head.find(':');
  injection.index = named(trimmed(head.substr(0, colon)), text);
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

std::vector<Injection> Injections::parse(const std::string& text) const {
  std::vector<Injection> injections;
  std::uint64_t seen = 0;
  std::size_t from = 0;
  while (from <= text.size()) {
    const auto semicolon = std::min(text.find(';', from), text.size());
    const std::string part = trimmed(text.substr(from, semicolon - from));
    from = semicolon + 1;
    if (part.empty()) continue;
    const Injection injection = parse_one(part);
    if (seen & bit(injection.index)) reject(part, "each fault once");
    seen |= bit(injection.index);
    injections.push_back(injection);
  }
  return injections;
}

void Injections::inject(const std::vector<Injection>& injections) {
  const std::lock_guard lock(injecting_);
  mask_.store(0, std::memory_order_release);
  std::uint64_t bits = 0;
  for (const Injection& injection : injections) {
    Slot& slot = slots_[injection.index];
    slot.probability.store(injection.probability, std::memory_order_relaxed);
    slot.seed.store(injection.seed, std::memory_order_relaxed);
    slot.opportunities.store(0, std::memory_order_relaxed);
    bits |= bit(injection.index);
  }
  mask_.store(bits, std::memory_order_release);
}

bool Injections::strikes(std::size_t index) {
  if (!injected(index)) return false;
  if ((mask_.load(std::memory_order_acquire) & bit(index)) == 0) return false;  // the slot is written before the bit
  Slot& slot = slots_[index];
  const std::uint64_t n = slot.opportunities.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t drawn = scrambled(slot.seed.load(std::memory_order_relaxed), n);
  // 53 bits: a number in [0, 1), so probability 1 always strikes and 0 never does.
  if (static_cast<double>(drawn >> 11) * 0x1p-53 >= slot.probability.load(std::memory_order_relaxed)) return false;
  slot.struck.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace faults
