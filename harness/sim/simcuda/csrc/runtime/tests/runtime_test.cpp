// Runs the runtime's tests, each in its own child process: `runtime_test [NAME...]`.

#include <cstdlib>

#include "check.h"

namespace simcuda::testing {

void check_error(const char* file, int line, const char* text, cudaError_t got, cudaError_t expected) {
  if (got != expected) {
    fail(file, line, std::string(text) + ": " + cudaGetErrorName(got) + ", expected " + cudaGetErrorName(expected));
  }
  if (got == cudaSuccess) return;
  const cudaError_t last = cudaGetLastError();
  if (last != got) fail(file, line, std::string(text) + ": the last error is " + cudaGetErrorName(last));
}

std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  OK(cudaMemGetInfo(&free, &total));
  EQUAL(total, 64 * MiB);
  return free;
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

}  // namespace simcuda::testing

int main(int count, char** arguments) {
  setenv("SIMCUDA_DEVICE_COUNT", "2", 1);
  setenv("SIMCUDA_DEVICE_MEMORY", "64MiB", 1);
  unsetenv("CUDA_VISIBLE_DEVICES");
  return simcuda::testing::run(count - 1, arguments + 1);
}
