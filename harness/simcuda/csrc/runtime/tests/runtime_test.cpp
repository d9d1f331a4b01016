// Runs the runtime's tests, each in a child of its own: `runtime_test [NAME...]`.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"

namespace simcuda::testing {

std::vector<Test>& tests() {
  static std::vector<Test> tests;
  return tests;
}

void fail(const char* file, int line, const std::string& what) {
  throw Failed(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

void check_error(const char* file, int line, const char* text, cudaError_t got, cudaError_t expected) {
  if (got != expected) {
    fail(file, line, std::string(text) + ": " + cudaGetErrorName(got) + ", expected " + cudaGetErrorName(expected));
  }
  if (got == cudaSuccess) return;
  const cudaError_t last = cudaGetLastError();
  if (last != got) fail(file, line, std::string(text) + ": the last error is " + cudaGetErrorName(last));
}

cudaStream_t new_stream(unsigned flags, int priority) {
  cudaStream_t stream = nullptr;
  OK(cudaStreamCreateWithPriority(&stream, flags, priority));
  return stream;
}

cudaEvent_t new_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  OK(cudaEventCreateWithFlags(&event, flags));
  return event;
}

namespace {

constexpr unsigned limit = 300;  // seconds for a test; only one that hangs takes so long

[[noreturn]] void run_here(const Test& test) {
  alarm(limit);
  int status = EXIT_SUCCESS;
  try {
    test.body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", test.name, error.what());
    status = EXIT_FAILURE;
  }
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
  return ran > 0 && failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

}  // namespace simcuda::testing

int main(int count, char** arguments) {
  setenv("SIMCUDA_DEVICE_COUNT", "2", 1);
  setenv("SIMCUDA_DEVICE_MEMORY", "64MiB", 1);
  unsetenv("CUDA_VISIBLE_DEVICES");
  return simcuda::testing::run(count - 1, arguments + 1);
}
