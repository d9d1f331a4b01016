// Helpers of the runtime's tests.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "../../../../softdevice/csrc/core/tests/testing.h"
#include "../../include/simcuda.h"

namespace simcuda::testing {

using namespace ::testing;

void check_error(const char* file, int line, const char* text, cudaError_t got, cudaError_t expected);

// Checks that the call returns this error, and sets it as the thread's last error.
#define GIVES(error, ...) ::simcuda::testing::check_error(__FILE__, __LINE__, #__VA_ARGS__, __VA_ARGS__, error)
#define OK(...) GIVES(cudaSuccess, __VA_ARGS__)

constexpr std::size_t KiB = 1 << 10, MiB = 1 << 20;

constexpr std::size_t at_first = 64 * MiB - 4 * MiB;  // free memory, without the context
std::size_t free_bytes();

inline cudaError_t launch(cudaStream_t stream, std::function<void()> work) {
  return static_cast<cudaError_t>(simcudaLaunch(stream, "test", &work));
}

cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking, int priority = 0);
cudaEvent_t new_event(unsigned flags = cudaEventDefault);

// Returns the graph captured while the body runs.
template <typename Body>
cudaGraph_t captured(cudaStream_t stream, Body&& body) {
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  body();
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(stream, &graph));
  return graph;
}

inline cudaGraphExec_t instantiated(cudaGraph_t graph) {
  cudaGraphExec_t exec = nullptr;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}

}  // namespace simcuda::testing
