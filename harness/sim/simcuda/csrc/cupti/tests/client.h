// A client of the activity API: it provides buffers, and copies the records that are returned.
#pragma once

#include <cuda_runtime_api.h>
#include <cupti.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "../../../../softdevice/csrc/core/tests/testing.h"
#include "../../include/simcuda.h"
#include "../layouts.h"

namespace simcuda::cupti::testing {

using namespace ::testing;

void check_success(const char* file, int line, const char* text, int got);
#define OK(...) \
  ::simcuda::cupti::testing::check_success(__FILE__, __LINE__, #__VA_ARGS__, static_cast<int>(__VA_ARGS__))

// The callbacks of `register_client` use these fields. Set them before that call.
struct Client {
  std::size_t size = 4096, most = 0;  // of the buffers
  bool has_buffers = true;
  int requests = 0, completions = 0;
  std::size_t dropped = 0;                         // set when a buffer is returned
  std::vector<std::vector<std::uint8_t>> records;  // in order of arrival, each with its padding
};
Client& client();
void register_client();

// Returns the records of a kind that has this layout, in order of arrival.
template <typename Record>
std::vector<Record> records(CUpti_ActivityKind kind) {
  std::vector<Record> found;
  for (const auto& bytes : client().records) {
    Record record;
    std::memcpy(&record, bytes.data(), sizeof record);
    if (record.kind == kind) found.push_back(record);
  }
  return found;
}
std::vector<CUpti_ActivityKind> kinds();

inline void flush() { OK(cuptiActivityFlushAll(0)); }

inline void launch(cudaStream_t stream, const char* name, std::function<void()> work) {
  OK(simcudaLaunch(stream, name, &work));
}

inline cudaStream_t new_stream() {
  cudaStream_t stream = nullptr;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

template <typename Value = char>
Value* device_memory(std::size_t bytes) {
  void* address = nullptr;
  OK(cudaMalloc(&address, bytes));
  return static_cast<Value*>(address);
}

}  // namespace simcuda::cupti::testing
