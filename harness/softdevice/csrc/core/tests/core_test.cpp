// Runs the core's tests, each in a child of its own: `core_test [NAME...]`, `core_test --list`, `core_test --bench`.

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "../event.h"
#include "check.h"

namespace soft::testing {

std::vector<Test>& tests() {
  static std::vector<Test> tests;
  return tests;
}

void fail(const char* file, int line, const std::string& what) {
  throw Failed(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

std::size_t resident() {
  std::ifstream statm("/proc/self/statm");
  std::size_t total = 0, pages = 0;
  statm >> total >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

namespace {

constexpr unsigned limit = 300;  // seconds for a test; only one that hangs takes so long

// Ends the process.
[[noreturn]] void run_here(const Test& test) {
  alarm(limit);
  int status = EXIT_SUCCESS;
  try {
    test.body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", test.name, error.what());
    status = EXIT_FAILURE;
  }
  abandon();
  std::exit(status);
}

bool passes(const Test& test) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) run_here(test);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) {
    std::perror(test.name);
    return false;
  }
  const bool passed = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
  if (WIFSIGNALED(status)) std::fprintf(stderr, "%s: died of signal %d\n", test.name, WTERMSIG(status));
  std::printf("%s %s\n", passed ? "passed" : "FAILED", test.name);
  return passed;
}

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

int run(int count, char** names) {
  int failed = 0, ran = 0;
  for (const Test& test : tests()) {
    bool wanted = count == 0;
    for (int i = 0; i < count; ++i) wanted = wanted || std::strcmp(names[i], test.name) == 0;
    if (!wanted) continue;
    ++ran;
    if (!passes(test)) ++failed;
  }
  std::printf("%d tests, %d failed\n", ran, failed);
  return failed == 0 && ran != 0 ? EXIT_SUCCESS : EXIT_FAILURE;
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
  return run(count - 1, arguments + 1);
}
