// Injected faults of any kind: the injected ones of a list of names, and the times when each of them strikes. The
// software device and CUDA's interface each have their own list.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace faults {

// NAME[:probability][,seed=N]. A fault strikes at each opportunity with its probability, by default 1. Each fault has
// its own random generator with its seed, by default 0. `index` is the position of the name in the list.
struct Injection {
  std::size_t index;
  double probability = 1.0;
  std::uint64_t seed = 0;
};

class Injections {
 public:
  static constexpr std::size_t most = 64;  // the maximum length of a list

  // `names` must never be freed. Constant-initialised, since static initialisers inject faults.
  template <std::size_t count>
  constexpr explicit Injections(const char* const (&names)[count]) : names_(names), count_(count) {
    static_assert(count <= most, "the mask of injected faults has 64 bits");
  }

  std::size_t count() const { return count_; }
  const char* name(std::size_t index) const { return names_[index]; }

  // Parses a list separated by semicolons. Throws std::invalid_argument with the text and the expected format.
  std::vector<Injection> parse(const std::string& text) const;

  // Replaces the faults injected in this process; thread-safe.
  void inject(const std::vector<Injection>& injections);

  // Returns whether the fault is injected, with any probability.
  bool injected(std::size_t index) const { return (mask_.load(std::memory_order_relaxed) & bit(index)) != 0; }
  bool any() const { return mask_.load(std::memory_order_relaxed) != 0; }

  // Returns whether the fault happens now, and counts it if so. Costs one relaxed load while nothing is injected.
  bool strikes(std::size_t index);
  std::uint64_t times_struck(std::size_t index) const { return slots_[index].struck.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    std::atomic<double> probability{0.0};
    std::atomic<std::uint64_t> seed{0};
    std::atomic<std::uint64_t> opportunities{0};  // since the injection
    std::atomic<std::uint64_t> struck{0};         // since the process started
  };

  static constexpr std::uint64_t bit(std::size_t index) { return std::uint64_t{1} << index; }
  std::size_t named(const std::string& name, const std::string& text) const;
  Injection parse_one(const std::string& text) const;

  const char* const* const names_;
  const std::size_t count_;
  Slot slots_[most];
  std::atomic<std::uint64_t> mask_{0};
  std::mutex injecting_;
};

}  // namespace faults
