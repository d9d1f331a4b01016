// Work of several streams at once, on devices of one or several processes: what the simulated NCCL needs of the
// runtime.
#pragma once

#include <driver_types.h>

#include <functional>

extern "C" {

// Hands work to a stream as simcudaLaunch does, in two halves. `begin` is called when the stream has come to it. `work`
// comes after the function that `begin` is given was called, by whichever thread, once. Until then the stream waits,
// and takes no thread meanwhile. In a capture both are one node, and both may run more than once.
int simcudaLaunchShared(cudaStream_t stream, const char* name, std::function<void(std::function<void()>)>* begin,
                        std::function<void()>* work);

void simcudaCountThread();  // of another library of the simulation, which has started it for good
}
