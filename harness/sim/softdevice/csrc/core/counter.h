// The positions of generators in their sequences, also within a replay.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>

namespace soft {

// A generator's position in its sequence. Random work advances it at the launch; captured work at each replay.
class Counter {
 public:
  std::uint64_t take(std::uint64_t count);  // returns the previous position
  std::uint64_t place() const;
  void set(std::uint64_t place);

 private:
  std::atomic<std::uint64_t> place_{0};
};

// Returns the counter's position when this replay was launched. Must be called in a stream's thread within a replay;
// otherwise throws std::logic_error.
std::uint64_t replay_place(const Counter* counter);

// The counters' positions when a replay was launched.
using Places = std::unordered_map<const Counter*, std::uint64_t>;

// Sets the results of `replay_place` for the calling thread.
class PlacesInUse {
 public:
  explicit PlacesInUse(const Places& places);
  ~PlacesInUse();
  PlacesInUse(const PlacesInUse&) = delete;
  PlacesInUse& operator=(const PlacesInUse&) = delete;
};

}  // namespace soft
