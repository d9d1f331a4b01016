#include "trace.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace simcuda {

namespace {

const bool tracing_ = [] {
  const char* const value = std::getenv("SIMCUDA_TRACE");
  return value != nullptr && *value != 0 && std::string(value) != "0";
}();

struct Counts {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, long> counts;
};

Counts& counts() {
  static auto* const counts = new Counts;
  return *counts;
}

struct AtEnd {
  ~AtEnd() {
    if (tracing_) print_trace();
  }
} at_end;

}  // namespace

bool tracing() { return tracing_; }

void count(const char* kind, const std::string& name) {
  if (!tracing_) return;
  const std::lock_guard lock(counts().mutex);
  ++counts().counts[{kind, name}];
}

void count(const char* kind, const char* name) {
  if (tracing_) count(kind, std::string(name));
}

void note(const std::string& line) {
  if (tracing_) std::fprintf(stderr, "[simcuda] %s\n", line.c_str());
}

void print_trace() {
  const std::lock_guard lock(counts().mutex);
  for (const auto& [key, number] : counts().counts) {
    std::fprintf(stderr, "[simcuda] %-10s %8ld  %s\n", key.first.c_str(), number, key.second.c_str());
  }
}

}  // namespace simcuda
