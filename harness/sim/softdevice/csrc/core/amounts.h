// Numbers and sizes in environment variables, for both devices.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace amounts {

constexpr std::size_t least_memory = std::size_t{2} << 20;  // per device: one segment of an allocator

inline std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Parses a decimal number without a sign. Returns nothing for any other text, or for more than 19 digits.
inline std::optional<std::size_t> number(std::string_view text) {
  if (text.empty() || text.size() > 19) return std::nullopt;
  std::size_t value = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    value = value * 10 + static_cast<std::size_t>(digit - '0');
  }
  return value;
}

// Parses the memory of a device: bytes, or a number with the suffix KiB, MiB or GiB. Returns nothing for any other
// text, or if the memory is too small or too large.
inline std::optional<std::size_t> memory(std::string_view text) {
  constexpr std::pair<std::string_view, int> suffixes[] = {{"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
  std::string_view digits = trimmed(text);
  int shift = 0;
  for (const auto& [suffix, bits] : suffixes) {
    if (digits.size() > suffix.size() && digits.substr(digits.size() - suffix.size()) == suffix) {
      digits = trimmed(digits.substr(0, digits.size() - suffix.size()));
      shift = bits;
      break;
    }
  }
  const auto value = number(digits);
  // The upper bits of sizes stay unused, so the sum of two sizes never overflows.
  if (!value || *value > (std::size_t{1} << 62) >> shift || (*value << shift) < least_memory) return std::nullopt;
  return *value << shift;
}

}  // namespace amounts
