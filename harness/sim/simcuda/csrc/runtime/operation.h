// Operations: the work of streams, either queued or as nodes of graphs.
#pragma once

#include <driver_types.h>

#include <functional>
#include <memory>
#include <vector>

#include "stream.h"

namespace simcuda {

// The work that a call gives to a stream. It is queued, or becomes a node of the stream's capture.
struct Operation {
  cudaGraphNodeType type = cudaGraphNodeTypeKernel;
  const char* name = "kernel";  // never freed
  Work work;                    // may run more than once, as part of a graph
  // The first part of work that needs other streams. `work` waits until any thread finishes the mark.
  Begin begin;
  cudaGraphNodeParams params{};  // the node's parameters; pointers in it must stay valid
  // Called by the launching thread at each launch of a graph with this node, before anything is queued. The launch
  // returns its error. Memory nodes use it.
  std::function<cudaError_t()> at_launch;
  // For the check for races: the memory that it uses, the place in the program, and whether it is a function of the
  // program, from which other threads may learn that earlier work is done.
  std::vector<races::Access> accesses{};
  std::shared_ptr<const races::Origin> origin{};
  bool tells_host = false;
  bool unknown = false;  // whether it is a kernel that has not declared its accesses
  // Kept alive as long as the node, a graph instantiated from it, or a replay.
  std::shared_ptr<void> kept;
};

// Returns an operation without work.
inline Operation bare_operation(cudaGraphNodeType type, const char* name) {
  Operation operation;
  operation.type = type;
  operation.name = name;
  return operation;
}

// Returns work that calls a function of the program. Calls of CUDA from that function fail.
Work host_work(cudaHostFn_t function, void* data);

}  // namespace simcuda
