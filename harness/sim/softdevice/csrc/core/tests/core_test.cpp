// Runs the core's tests, each in its own child process: `core_test [NAME...]`, `core_test --list`, `core_test --bench`.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "../event.h"
#include "check.h"

namespace soft::testing {

std::size_t resident() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0, pages = 0;
  statm >> total >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

namespace {

template <typename Body>
void bench(const char* what, int times, Body body) {
  const auto begin = std::chrono::steady_clock::now();
  body(times);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  std::printf("%-44s %12.0f a second\n", what, times / taken.count());
}

void bench_all() {
  Stream& stream = new_stream();
  Stream& other = new_stream();
  stream.synchronize();
  bench("launches of nothing, one stream", 1000000, [&](int times) {
    for (int i = 0; i < times; ++i) stream.launch("nothing", [] {});
    stream.synchronize();
  });
  bench("launches, each synchronised", 20000, [&](int times) {
    for (int i = 0; i < times; ++i) {
      stream.launch("nothing", [] {});
      stream.synchronize();
    }
  });
  bench("events recorded and waited for by a stream", 200000, [&](int times) {
    Event event(0, false);
    for (int i = 0; i < times; ++i) {
      event.record(stream);
      event.block(other);
    }
    other.synchronize();
  });
  Allocator& allocator = device(0).allocator();
  bench("allocations, each given back", 1000000, [&](int times) {
    for (int i = 0; i < times; ++i) allocator.free(allocator.allocate(std::size_t{1} << (i % 20), stream));
  });
  bench("allocations, each used by another stream", 200000, [&](int times) {
    for (int i = 0; i < times; ++i) {
      Block* const block = allocator.allocate(std::size_t{1} << (i % 20), stream);
      other.launch("use", [] {});
      allocator.record(block, other);
      allocator.free(block);
    }
    other.synchronize();
  });
  bench("synchronisations of an idle device", 20000, [&](int times) {
    for (int i = 0; i < times; ++i) device(0).synchronize();
  });
  abandon();
}

}  // namespace
}  // namespace soft::testing

int main(int count, char** arguments) {
  using namespace soft::testing;
  setenv("SOFT_DEVICE_COUNT", "2", 1);
  setenv("SOFT_DEVICE_MEMORY", "64MiB", 1);
  unsetenv("SOFT_VISIBLE_DEVICES");
  unsetenv("SOFT_INJECT");
  if (count == 2 && std::strcmp(arguments[1], "--list") == 0) {
    for (const Test& test : tests()) std::puts(test.name);
    return EXIT_SUCCESS;
  }
  if (count == 2 && std::strcmp(arguments[1], "--bench") == 0) {
    bench_all();
    return EXIT_SUCCESS;
  }
  return run(count - 1, arguments + 1, &soft::abandon);
}
