// Captures: streams whose operations become nodes of a graph. CUDA Runtime API, "Stream Management", the functions that
// have Capture in their names; CUDA Programming Guide, "Creating a Graph Using Stream Capture".
#pragma once

#include <driver_types.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "graph.h"

namespace simcuda {

struct Capture {
  unsigned long long id = 0;
  std::shared_ptr<Graph> graph;
  bool given_graph = false;  // by the program, which goes on to own it
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::shared_ptr<Stream> origin;
  std::thread::id thread;
  bool invalid = false;

  struct Member {
    std::shared_ptr<Stream> stream;
    std::vector<Node*> tail;  // what the next operation needs
  };
  std::vector<Member> members;  // origin first

  Member* member(const Stream& stream);
  void invalidate(const char* why);
};

// Whether any stream of this process is being captured. Costs one relaxed load.
bool any_capture();
// The capture that the stream is in, or null.
std::shared_ptr<Capture> capture_of(const Stream& stream);

// Queues the operation, or adds it to the stream's capture. Returns the device's sticky error, or the capture's.
cudaError_t submit(Stream& stream, Operation operation);

// At the beginning of calls that are unsafe in a capture (memory that is made or given back, waiting for the device):
// throws Error(cudaErrorStreamCaptureUnsupported), and invalidates the captures, if the calling thread's mode and the
// modes of captures forbid them. CUDA Runtime API, cudaThreadExchangeStreamCaptureMode.
void forbid_unsafe(const char* call);
// At the beginning of calls that cannot be captured at all, and at all that wait for this stream.
void forbid_captured(const Stream& stream, const char* call);
// At the beginning of synchronous calls that use the legacy stream: throws cudaErrorStreamCaptureImplicit if a blocking
// stream of the device is captured.
void forbid_implicit(Device& device, const char* call);

}  // namespace simcuda
