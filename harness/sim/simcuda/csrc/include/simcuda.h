// The simulated runtime's additions to CUDA's interface, for the operators' library and for Python.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <functional>

extern "C" {

// Queues work on a stream; if the stream is capturing, adds a kernel node to the capture. The work runs later in a
// thread of the runtime with the stream's device as the current one, so it must only hold addresses and plain values.
// `name` must never be freed. An exception of the work becomes the device's sticky error cudaErrorAssert. Returns a
// cudaError_t and sets the last error, as a launch does, and moves from `*work`.
int simcudaLaunch(cudaStream_t stream, const char* name, std::function<void()>* work);

int simcudaIsCapturing(cudaStream_t stream);  // 1 or 0

// Makes the capture that the stream is in, if any, end with cudaErrorStreamCaptureInvalidated.
void simcudaInvalidateCapture(cudaStream_t stream, const char* why);

// Sets a sticky error of a device, such as cudaErrorAssert (710): later calls that reach the device return it.
void simcudaFailDevice(int device, int error, const char* why);

// Sets the value of a conditional node for the rest of the running replay. Call it from work that runs in a replay;
// elsewhere it has no effect.
void simcudaSetConditional(unsigned long long handle, unsigned value);

// Whether the host may not use device memory (SIMCUDA_CHECK=memory). Reads some of it in spite of that.
int simcudaGuardsMemory();
void simcudaReadMemory(void* to, const void* from, std::size_t bytes);

int simcudaThreadCount();           // threads that the runtime has started in this process
int simcudaIsInitialized();         // whether a call has reached the driver: a child forked after that cannot use CUDA
int simcudaHasContext(int device);  // whether the device has been used
void simcudaPrintTrace();           // prints the counts of SIMCUDA_TRACE to stderr
}
