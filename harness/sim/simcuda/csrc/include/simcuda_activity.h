// The activities that the runtime reports to an observer (CUPTI): the calls of the program, and the work of streams for
// them.
#pragma once

#include <cstdint>

enum class SimcudaActivityKind : int {
  call_begins,    // a function of the runtime or of the driver begins; reported before the activities that it causes
  call,           // the function has ended
  wait,           // a wait that the call that has just ended did or queued
  event_record,   // an event was recorded; reported at the call
  event_reached,  // the stream has reached the event
  kernel,         // work of a device: a kernel, or a host function
  copy,
  fill,
  context,  // a device's context was created
};

enum class SimcudaWait : int { none, event, stream_for_event, stream, device };

enum class SimcudaMemory : std::uint8_t { pageable, pinned, device, managed };

// One side of a copy. `device` is the memory's device; -1 for the host.
struct SimcudaPlace {
  SimcudaMemory memory;
  int device;
};

struct SimcudaActivity {
  SimcudaActivityKind kind;
  const char* name;           // never freed
  std::uint64_t start, end;   // by the observer's clock
  std::uint32_t correlation;  // shared by a call and the work that it queued
  // Fields of a call, and of its wait.
  bool driver;           // whether it is a function of the driver
  std::uint32_t thread;  // the calling thread
  int result;            // a cudaError_t or a CUresult
  std::uint64_t* data;   // the observer's own; valid from the call's begin to its end
  // Fields of the other activities.
  int device;
  std::uint64_t stream;  // the stream's number: 0 is the legacy default stream; simcuda_no_stream if there is none
  SimcudaWait wait;
  std::uint32_t event;    // the event's number, from 1; 0 if there is none
  std::uint64_t record;   // the number of the event's record
  std::uint64_t bytes;    // of copies and fills
  SimcudaPlace from, to;  // a fill has only `to`
  bool asynchronous;
  std::uint32_t value;  // of a fill
  // Set for work of a graph, otherwise 0.
  std::uint32_t graph;
  std::uint64_t node;
};

constexpr std::uint64_t simcuda_no_stream = ~std::uint64_t{0};

// A call of the program, from its beginning to its end.
struct SimcudaCall {
  const char* name = nullptr;  // null if nobody observes the call, or if it is part of another call
  bool driver = false;
  int result = 0;
  std::uint64_t start = 0, data = 0;
};

constexpr int simcuda_observe_calls = 1;  // and the work that they queue
constexpr int simcuda_observe_contexts = 2;

extern "C" {

// From now on, reports each activity to the observer when it ends, in the thread where it ended. `wanted` 0 stops this.
// Work of calls that were not observed is not reported.
void simcudaObserve(void (*observer)(const SimcudaActivity* activity), std::uint64_t (*clock)(), int wanted);

// For the driver's functions: calls of the runtime inside them are part of the call, and are not reported.
void simcudaBeginCall(SimcudaCall* call, const char* name, int driver);
void simcudaEndCall(SimcudaCall* call);

// Return the numbers of graphs and nodes in reports; 0 if the handle is unknown.
std::uint32_t simcudaGraphNumber(const void* graph);
std::uint32_t simcudaGraphExecNumber(const void* exec);
std::uint64_t simcudaGraphNodeNumber(const void* node);
// Returns the number of a stream of the runtime or of the driver; simcuda_no_stream if the handle is unknown.
std::uint64_t simcudaStreamNumber(const void* stream, int per_thread);
}
