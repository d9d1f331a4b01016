// Captures: streams whose operations become nodes of a graph. CUDA Runtime API, "Stream Management", the functions that
// have Capture in their names; CUDA Programming Guide, "Creating a Graph Using Stream Capture".
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

// All of it is guarded by the mutex of graphs.
struct Capture {
  struct Member {
    std::shared_ptr<Stream> stream;
    std::vector<Node*> tail;  // what the next operation needs
    void join(const std::vector<Node*>& nodes);
  };

  unsigned long long id = 0;
  std::shared_ptr<Graph> graph;
  bool given_graph = false;  // by the program, which goes on to own it
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false;
  std::vector<Member> members;  // the stream that began it is the first

  Member* member(const Stream& stream);
  // It ends in cudaErrorStreamCaptureInvalidated.
  void invalidate(const char* why);
};

// Whether any stream of this process is being captured. Costs one load.
bool any_capture();
// The capture that the stream is in, or null.
std::shared_ptr<Capture> capture_of(const Stream& stream);

// Queues the operation, or adds it to the stream's capture. Returns the device's sticky error, or the capture's.
cudaError_t submit(Stream& stream, Operation operation);

// These four come at the beginning of calls. They invalidate the captures that stand in the way and throw Error.
//
// Calls that are unsafe in a capture (memory that is made or given back, questions after an event): refused if the mode
// of the calling thread and those of captures say so. CUDA Runtime API, cudaThreadExchangeStreamCaptureMode.
void forbid_unsafe(const char* call);
// Calls that ask for the state of a stream, or wait for it: refused while it is captured.
void forbid_captured(const Stream& stream, const char* call);
// Calls that wait for a device: refused while any of its streams is captured.
void forbid_captured(const Device& device, const char* call);
// Work for the legacy stream: refused while a blocking stream of the device is captured.
void forbid_implicit(const Stream& stream, const char* call);

// Asking for the state of the legacy stream's capture: refused as well, but harms no capture.
void refuse_implicit(const Stream& stream);

void begin_capture(Stream& stream, std::shared_ptr<Graph> graph, bool given, const std::vector<Node*>& tail,
                   cudaStreamCaptureMode mode);
std::shared_ptr<Graph> end_capture(Stream& stream);
cudaStreamCaptureMode exchange_mode(cudaStreamCaptureMode mode);  // of the calling thread
// For a stream that is destroyed: its capture is of no use any longer.
void leave_capture(Stream& stream);

}  // namespace simcuda
