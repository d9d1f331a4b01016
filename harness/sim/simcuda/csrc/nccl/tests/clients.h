// Helpers of the simulated NCCL's tests: communicators of several devices in one process, and their memory.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <functional>
#include <vector>

#include "../../../../softdevice/csrc/core/tests/testing.h"
#include "../../include/simcuda.h"

namespace simcuda::testing {

using namespace ::testing;

#define OK(...) EQUAL(static_cast<int>(__VA_ARGS__), 0)
#define GIVES(result, ...) EQUAL(static_cast<int>(__VA_ARGS__), static_cast<int>(result))

// One rank on each of the first `count` devices, each with a stream.
class Ranks {
 public:
  explicit Ranks(int count) : communicators(static_cast<std::size_t>(count)), streams(communicators.size()) {
    OK(ncclCommInitAll(communicators.data(), count, nullptr));
    each([this](int rank) { OK(cudaStreamCreateWithFlags(&streams[at(rank)], cudaStreamNonBlocking)); });
  }

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  int count() const { return static_cast<int>(communicators.size()); }
  // Calls the body once per rank, with the rank's device as the current one.
  template <typename Body>
  void each(Body&& body) {
    for (int rank = 0; rank < count(); ++rank) {
      OK(cudaSetDevice(rank));
      body(rank);
    }
  }
  // Does the same within a group.
  template <typename Body>
  void grouped(Body&& body) {
    OK(ncclGroupStart());
    each(body);
    OK(ncclGroupEnd());
  }
  void synchronize() {
    each([this](int rank) { OK(cudaStreamSynchronize(streams[at(rank)])); });
  }
  ncclComm_t communicator(int rank) const { return communicators[at(rank)]; }
  cudaStream_t stream(int rank) const { return streams[at(rank)]; }

  std::vector<ncclComm_t> communicators;
  std::vector<cudaStream_t> streams;
};

// Allocates memory of the current device. The host can access it, too, since the simulated device memory is host
// memory.
template <typename Type>
Type* filled(std::size_t count, Type value) {
  void* made = nullptr;
  OK(cudaMalloc(&made, count * sizeof(Type)));
  auto* const values = static_cast<Type*>(made);
  for (std::size_t i = 0; i < count; ++i) values[i] = value;
  return values;
}

inline void launch(cudaStream_t stream, std::function<void()> work) { OK(simcudaLaunch(stream, "test", &work)); }

}  // namespace simcuda::testing
