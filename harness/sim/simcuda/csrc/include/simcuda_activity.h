// What the runtime tells an observer, CUPTI: the calls of the program, and what streams did for them.
#pragma once

#include <cstdint>

enum class SimcudaActivityKind : int {
  call_begins,    // a function of the runtime or of the driver; told before anything that it leads to
  call,           // the same, when it has ended
  wait,           // what the call that has just ended waited for, or asked for
  event_record,   // an event was recorded: told in the call
  event_reached,  // the same, when the stream has come to it
  kernel,         // work of a device: a kernel, or a host function
  copy,
  fill,
  context,  // of a device; it is there from now on
};

enum class SimcudaWait : int { none, event, stream_for_event, stream, device };

enum class SimcudaMemory : std::uint8_t { pageable, pinned, device, managed };

// One side of a copy. `device` is that of the memory; -1 on the host.
struct SimcudaPlace {
  SimcudaMemory memory;
  int device;
};

struct SimcudaActivity {
  SimcudaActivityKind kind;
  const char* name;           // lives for ever
  std::uint64_t start, end;   // by the observer's clock
  std::uint32_t correlation;  // the same for a call and for what it asked for
  // Of a call, and of what it waited for.
  bool driver;           // a function of the driver
  std::uint32_t thread;  // that made the call
  int result;            // a cudaError_t or a CUresult
  std::uint64_t* data;   // the observer's own; lives from a call's begin to its end
  // Of the rest.
  int device;
  std::uint64_t stream;  // its number: 0 is the legacy default stream, simcuda_no_stream none
  SimcudaWait wait;
  std::uint32_t event;    // its number, from 1; 0 is none
  std::uint64_t record;   // the number of the event's record
  std::uint64_t bytes;    // of copies and fills
  SimcudaPlace from, to;  // of a copy; a fill has `to` alone
  bool asynchronous;
  std::uint32_t value;  // of a fill
  // Of work that a graph did, otherwise 0.
  std::uint32_t graph;
  std::uint64_t node;
};

constexpr std::uint64_t simcuda_no_stream = ~std::uint64_t{0};

// A call of the program, from its begin to its end.
struct SimcudaCall {
  const char* name = nullptr;  // null: nobody observes it, or it is part of another call
  bool driver = false;
  int result = 0;
  std::uint64_t start = 0, data = 0;
};

constexpr int simcuda_observe_calls = 1;  // and the work that they ask for
constexpr int simcuda_observe_contexts = 2;

extern "C" {

// From now on the observer is told of each activity when it ends, in the thread where it ended; `wanted` 0 ends that.
// Work of calls that were not observed is not told.
void simcudaObserve(void (*observer)(const SimcudaActivity* activity), std::uint64_t (*clock)(), int wanted);

// For the driver's functions: those of the runtime that they call are part of them.
void simcudaBeginCall(SimcudaCall* call, const char* name, int driver);
void simcudaEndCall(SimcudaCall* call);

// The numbers under which graphs and nodes are told. 0 if it is none.
std::uint32_t simcudaGraphNumber(const void* graph);
std::uint32_t simcudaGraphExecNumber(const void* exec);
std::uint64_t simcudaGraphNodeNumber(const void* node);
// Of a stream of the runtime or of the driver; simcuda_no_stream if it is none.
std::uint64_t simcudaStreamNumber(const void* stream, int per_thread);
}
