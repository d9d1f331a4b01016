// The generator of one piece of random work.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <cstdint>

namespace operators {

// Mixes both well (Steele, Lea and Flood's splitmix64 twice): neighbouring positions share no numbers.
inline std::uint64_t mixed(std::uint64_t seed, std::uint64_t place) {
  const auto mix = [](std::uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  };
  return mix(mix(seed) ^ place);
}

inline at::Generator cpu_generator(std::uint64_t seed, std::uint64_t place) {
  return at::detail::createCPUGenerator(mixed(seed, place));
}

}  // namespace operators
