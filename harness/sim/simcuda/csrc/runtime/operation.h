// Operations: what streams do, at once or as nodes of graphs.
#pragma once

#include <driver_types.h>

#include <functional>
#include <memory>

#include "stream.h"

namespace simcuda {

// What a call asks a stream to do: it is queued, or becomes a node of the stream's capture.
struct Operation {
  cudaGraphNodeType type = cudaGraphNodeTypeKernel;
  const char* name = "kernel";  // lives for ever
  Work work;                    // may be run more than once, as part of a graph
  // Comes before `work`, which waits until the mark is finished, by whichever thread. For work that needs others.
  Begin begin;
  cudaGraphNodeParams params{};  // what the node's parameters are asked for; pointers in it must stay valid
  // Of a node: called by the launching thread at each launch of a graph that has it, before anything is queued. An
  // error that it returns is the launch's. For memory.
  std::function<cudaError_t()> at_launch;
  // Of a node: kept as long as the node, or a graph made of it, or a replay.
  std::shared_ptr<void> kept;
};

// One that has no work.
inline Operation bare_operation(cudaGraphNodeType type, const char* name) {
  Operation operation;
  operation.type = type;
  operation.name = name;
  return operation;
}

// A function of the program, for an operation's work. Calls of CUDA from it fail.
Work host_work(cudaHostFn_t function, void* data);

}  // namespace simcuda
