// Captures: streams whose operations become nodes of a graph. CUDA Runtime API, "Stream Management", the functions with
// Capture in their names; CUDA Programming Guide, "Creating a Graph Using Stream Capture".
#pragma once

#include <driver_types.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device.h"
#include "graph.h"
#include "operation.h"
#include "stream.h"

namespace simcuda {

// The mutex of graphs guards all fields.
struct Capture {
  struct Member {
    std::shared_ptr<Stream> stream;
    std::vector<Node*> tail;  // dependencies of the next operation
    void join(const std::vector<Node*>& nodes);
  };

  unsigned long long id = 0;
  std::shared_ptr<Graph> graph;
  bool given_graph = false;  // the program created the graph, and keeps owning it
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false;
  std::vector<Member> members;  // the first one began the capture

  Member* member(const Stream& stream);
  // Makes the capture end with cudaErrorStreamCaptureInvalidated.
  void invalidate(const char* why);
};

// Returns whether any stream of this process is capturing. Costs one load.
bool any_capture();
// Returns the stream's capture, or null.
std::shared_ptr<Capture> capture_of(const Stream& stream);

// Queues the operation, or adds it to the stream's capture. Returns the sticky error of the device or of the capture.
cudaError_t submit(Stream& stream, Operation operation);

// Calls begin with one of these four. They invalidate the captures that conflict with the call, and throw Error.
//
// Calls that are unsafe in a capture, such as allocating, freeing, and querying an event: refused depending on the
// calling thread's mode and the captures' modes. CUDA Runtime API, cudaThreadExchangeStreamCaptureMode.
void forbid_unsafe(const char* call);
// Calls that query a stream, or wait for it: refused while it is capturing.
void forbid_captured(const Stream& stream, const char* call);
// Calls that wait for a device: refused while any of its streams is capturing.
void forbid_captured(const Device& device, const char* call);
// Work on the legacy stream: refused while a blocking stream of the device is capturing.
void forbid_implicit(const Stream& stream, const char* call);

// Querying the capture of the legacy stream: refused as well, but invalidates no capture.
void refuse_implicit(const Stream& stream);

void begin_capture(Stream& stream, std::shared_ptr<Graph> graph, bool given, const std::vector<Node*>& tail,
                   cudaStreamCaptureMode mode);
std::shared_ptr<Graph> end_capture(Stream& stream);
cudaStreamCaptureMode exchange_mode(cudaStreamCaptureMode mode);  // of the calling thread
// For a stream that is destroyed: its capture can no longer be ended.
void leave_capture(Stream& stream);

}  // namespace simcuda
