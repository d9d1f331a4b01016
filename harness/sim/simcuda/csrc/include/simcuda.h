// What the simulated runtime offers beyond CUDA's own interface, for the operators' library and for Python.
#pragma once

#include <driver_types.h>

#include <functional>

extern "C" {

// Hands work to a stream: queued there, or a kernel node of the capture that the stream is in. The work runs in a
// thread of the runtime with the stream's device as the current one, later than this call: it may hold addresses and
// plain values only. `name` must live for ever. What the work throws becomes the device's sticky error cudaErrorAssert.
// Returns a cudaError_t and sets the last error, as a launch does, and moves from `*work`.
int simcudaLaunch(cudaStream_t stream, const char* name, std::function<void()>* work);

int simcudaIsCapturing(cudaStream_t stream);  // 1 or 0

// Has the capture that the stream is in, if any, end in cudaErrorStreamCaptureInvalidated.
void simcudaInvalidateCapture(cudaStream_t stream, const char* why);

// A sticky error of a device, such as cudaErrorAssert (710): calls that reach the device return it from now on.
void simcudaFailDevice(int device, int error, const char* why);

// Sets the value of a conditional node for the rest of the running replay. Work that runs in a replay may call it; from
// elsewhere it does nothing.
void simcudaSetConditional(unsigned long long handle, unsigned value);

int simcudaThreadCount();    // threads that the runtime has started in this process
int simcudaIsInitialized();  // whether a call has reached the driver: a fork after that leaves the child without CUDA
int simcudaHasContext(int device);  // whether the device has been used
void simcudaPrintTrace();           // the counts of SIMCUDA_TRACE, to stderr
}
