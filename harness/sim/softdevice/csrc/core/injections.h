// Faults on demand, whatever they are: which of a list of names are injected, and when each of them strikes. The faults
// of the software device and those of CUDA's interface are two lists.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace faults {

// NAME[:probability][,seed=N]. A fault strikes at each opportunity with its probability, 1 when not given, drawn from a
// generator of its own that starts at its seed, 0 when not given. `index`: that of its name in the list.
struct Injection {
  std::size_t index;
  double probability = 1.0;
  std::uint64_t seed = 0;
};

class Injections {
 public:
  static constexpr std::size_t most = 64;  // names in a list

  // `names` must live for ever. Constant-initialised: static initialisers inject.
  template <std::size_t count>
  constexpr explicit Injections(const char* const (&names)[count]) : names_(names), count_(count) {
    static_assert(count <= most, "the mask of injected faults has 64 bits");
  }

  std::size_t count() const { return count_; }
  const char* name(std::size_t index) const { return names_[index]; }

  // Reads a list, separated by semicolons. Throws std::invalid_argument that names the text and what was expected.
  std::vector<Injection> parse(const std::string& text) const;

  // Replaces what is injected in this process; thread-safe.
  void inject(const std::vector<Injection>& injections);

  // Whether the fault is injected at all, with whatever probability.
  bool injected(std::size_t index) const { return (mask_.load(std::memory_order_relaxed) & bit(index)) != 0; }
  bool any() const { return mask_.load(std::memory_order_relaxed) != 0; }

  // Whether the fault happens now. Costs one relaxed load while nothing is injected. Each true is counted.
  bool strikes(std::size_t index);
  std::uint64_t times_struck(std::size_t index) const { return slots_[index].struck.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    std::atomic<double> probability{0.0};
    std::atomic<std::uint64_t> seed{0};
    std::atomic<std::uint64_t> opportunities{0};  // since it was injected
    std::atomic<std::uint64_t> struck{0};         // since the process began
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
