// Work that spans several streams, on devices of one or several processes. The simulated NCCL uses it.
#pragma once

#include <driver_types.h>

#include <functional>

extern "C" {

// Queues work on a stream as simcudaLaunch does, in two parts. `begin` is called when the stream reaches the work, and
// gets a function. `work` runs after any thread has called that function, once. Until then the stream waits, without
// occupying a thread. In a capture both parts are one node, and both may run more than once.
int simcudaLaunchShared(cudaStream_t stream, const char* name, std::function<void(std::function<void()>)>* begin,
                        std::function<void()>* work);

void simcudaCountThread();  // counts a thread that another library of the simulation has started and keeps
}
