#include "config.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "amounts.h"
#include "faults.h"

namespace soft {

namespace {

using amounts::number;
using amounts::trimmed;

constexpr int default_count = 2;
constexpr int most_devices = 64;  // torch stores device indices in 8 bits

[[noreturn]] void reject(const char* variable, std::string_view value, const std::string& expected) {
  throw std::invalid_argument(std::string(variable) + "='" + std::string(value) + "': expected " + expected);
}

std::size_t parse_count(const char* text) {
  if (text == nullptr) return default_count;
  const auto count = number(trimmed(text));
  if (!count || *count < 1 || *count > most_devices) {
    reject("SOFT_DEVICE_COUNT", text, "a number from 1 to " + std::to_string(most_devices));
  }
  return *count;
}

std::size_t parse_memory(const char* text) {
  if (text == nullptr) return std::size_t{1} << 30;
  const auto bytes = amounts::memory(text);
  if (!bytes) reject("SOFT_DEVICE_MEMORY", text, "a number of bytes, at least 2 MiB, as in 268435456, 256MiB or 1GiB");
  return *bytes;
}

std::vector<std::string> parse_visible(const char* text, std::size_t count) {
  std::vector<std::string> all;
  for (std::size_t index = 0; index < count; ++index) all.push_back("SOFT-" + std::to_string(index));
  if (text == nullptr) return all;
  std::vector<std::string> visible;
  std::string_view rest = trimmed(text);
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    const std::string_view name = trimmed(rest.substr(0, comma));
    const auto index = number(name);
    const auto found = index ? (*index < count ? all.begin() + static_cast<std::ptrdiff_t>(*index) : all.end())
                             : std::find(all.begin(), all.end(), name);
    if (found == all.end()) {
      reject("SOFT_VISIBLE_DEVICES", text,
             "indices below " + std::to_string(count) + " or UUIDs from SOFT-0 to " + all.back() +
                 ", separated by commas, but '" + std::string(name) + "' is neither");
    }
    if (std::find(visible.begin(), visible.end(), *found) != visible.end()) {
      reject("SOFT_VISIBLE_DEVICES", text, "each device once, but " + *found + " is named twice");
    }
    visible.push_back(*found);
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
    if (trimmed(rest).empty()) reject("SOFT_VISIBLE_DEVICES", text, "a device after each comma");
  }
  return visible;
}

bool parse_synchronous(const char* text) {
  const std::string_view value = trimmed(text != nullptr ? text : "0");
  if (value != "0" && value != "1") reject("SOFT_SYNCHRONOUS", text, "0 or 1");
  return value == "1";
}

}  // namespace

Config Config::parse(const char* count, const char* memory, const char* visible, const char* without_types,
                     const char* synchronous) {
  Config config;
  std::istringstream types(without_types ? without_types : "");
  for (std::string name; std::getline(types, name, ',');) config.without_types.emplace_back(trimmed(name));
  config.uuids = parse_visible(visible, parse_count(count));
  config.memory = parse_memory(memory);
  config.synchronous = parse_synchronous(synchronous);
  return config;
}

const Config& Config::get() {
  static const Config* const config = [] {
    // Faults are injected when the library is loaded, where a parse error could not be reported. This reports it.
    if (const char* faults = std::getenv("SOFT_INJECT")) {
      try {
        parse_injections(faults);
      } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(std::string("SOFT_INJECT: ") + error.what());
      }
    }
    return new Config(parse(std::getenv("SOFT_DEVICE_COUNT"), std::getenv("SOFT_DEVICE_MEMORY"),
                            std::getenv("SOFT_VISIBLE_DEVICES"), std::getenv("SOFT_WITHOUT_TYPES"),
                            std::getenv("SOFT_SYNCHRONOUS")));
  }();
  return *config;
}

}  // namespace soft
