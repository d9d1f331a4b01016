#include "counter.h"

#include <stdexcept>

#include "faults.h"

namespace soft {

namespace {

thread_local const Places* places_in_use = nullptr;

}  // namespace

std::uint64_t Counter::take(std::uint64_t count) {
  if (strikes(Fault::generator_not_advanced)) return place();
  return place_.fetch_add(count, std::memory_order_relaxed);
}

std::uint64_t Counter::place() const { return place_.load(std::memory_order_relaxed); }

void Counter::set(std::uint64_t place) { place_.store(place, std::memory_order_relaxed); }

PlacesInUse::PlacesInUse(const Places& places) { places_in_use = &places; }
PlacesInUse::~PlacesInUse() { places_in_use = nullptr; }

std::uint64_t replay_place(const Counter* counter) {
  if (places_in_use == nullptr) throw std::logic_error("replay_place was called outside of a graph's replay");
  const auto found = places_in_use->find(counter);
  if (found == places_in_use->end()) throw std::logic_error("replay_place was called for a counter of another graph");
  return found->second;
}

}  // namespace soft
