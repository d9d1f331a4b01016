// The functions of torch that record and take snapshots without Python. The file does not include pybind11 and
// torch/extension.h, whose headers take a compiler half a minute.

#include <torch/csrc/cuda/memory_snapshot.h>

#include <cstddef>
#include <string>

extern "C" {

// Calls `give` with the bytes of a snapshot, which are freed afterwards.
void conformance_take_snapshot(void (*give)(const char* bytes, std::size_t count)) {
  const std::string taken = torch::cuda::_memory_snapshot_pickled();
  give(taken.data(), taken.size());
}

// Records up to ten entries, with or without stacks.
void conformance_record(bool on, bool with_stacks) {
  torch::cuda::_record_memory_history(on, with_stacks, /*trace_alloc_max_entries=*/10, with_stacks, with_stacks);
}

}  // extern "C"
