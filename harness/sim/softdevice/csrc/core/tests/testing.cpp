#include "testing.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace testing {

std::vector<Test>& tests() {
  static std::vector<Test> tests;
  return tests;
}

void fail(const char* file, int line, const std::string& what) {
  throw Failed(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

namespace {

constexpr unsigned limit = 300;  // seconds per test; only a hanging test takes so long

[[noreturn]] void run_here(const Test& test, void (*ended)()) {
  alarm(limit);
  int status = EXIT_SUCCESS;
  try {
    test.body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", test.name, error.what());
    status = EXIT_FAILURE;
  }
  if (ended != nullptr) ended();
  std::exit(status);
}

bool passes(const Test& test, void (*ended)()) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) run_here(test, ended);
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

}  // namespace

int run(int count, char** names, void (*ended)()) {
  int failed = 0, ran = 0;
  for (const Test& test : tests()) {
    bool wanted = count == 0;
    for (int i = 0; i < count; ++i) wanted = wanted || std::strcmp(names[i], test.name) == 0;
    if (!wanted) continue;
    ++ran;
    if (!passes(test, ended)) ++failed;
  }
  std::printf("%d tests, %d failed\n", ran, failed);
  return failed == 0 && ran != 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace testing
