// What the runtime tells an observer, CUPTI: the calls of the program, and the work that devices did for them.
#pragma once

#include <cstdint>

enum class SimcudaActivityKind : int {
  call,    // a function of the runtime, from its begin to its end
  kernel,  // work of a device: a kernel, or a host function
  copy,
  fill,
};

struct SimcudaActivity {
  SimcudaActivityKind kind;
  const char* name;           // lives for ever
  std::uint64_t start, end;   // by the observer's clock
  std::uint32_t correlation;  // the same for a call and for the work that it asked for
  // Of a call.
  std::uint32_t thread;
  int result;
  // Of work.
  int device;
  std::uint64_t stream;  // its number; 0 is the legacy default stream
  std::uint64_t bytes;   // of copies and fills
  bool from_host, from_pinned, to_host, to_pinned;
  std::uint32_t value;  // of a fill
  bool in_graph;
};

extern "C" {

// From now on the observer is told of each activity when it ends, in the thread where it ended; null ends that. Work of
// calls that were not observed is not told.
void simcudaObserve(void (*observer)(const SimcudaActivity* activity), std::uint64_t (*clock)());
}
