// The places of generators in their sequences, and what they are within a replay.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>

namespace soft {

// A generator's place in its sequence. Random work takes numbers from it at its launch; captured, at each replay.
class Counter {
 public:
  std::uint64_t take(std::uint64_t count);  // the place before
  std::uint64_t place() const;
  void set(std::uint64_t place);

 private:
  std::atomic<std::uint64_t> place_{0};
};

// In a stream's thread, within a replay: where the counter stood when this replay was launched. Otherwise throws
// std::logic_error.
std::uint64_t replay_place(const Counter* counter);

// What a counter stood at when a replay was launched.
using Places = std::unordered_map<const Counter*, std::uint64_t>;

// Sets for the calling thread what `replay_place` tells.
class PlacesInUse {
 public:
  explicit PlacesInUse(const Places& places);
  ~PlacesInUse();
  PlacesInUse(const PlacesInUse&) = delete;
  PlacesInUse& operator=(const PlacesInUse&) = delete;
};

}  // namespace soft
