// Runs the tests of the simulated NCCL, each in its own child process: `simcuda_nccl_tests [NAME...]`.

#include <cstdlib>

#include "clients.h"

int main(int count, char** arguments) {
  setenv("SIMCUDA_DEVICE_COUNT", "4", 1);
  setenv("SIMCUDA_DEVICE_MEMORY", "64MiB", 1);
  unsetenv("CUDA_VISIBLE_DEVICES");
  unsetenv("NCCL_DEBUG");
  return simcuda::testing::run(count - 1, arguments + 1);
}
