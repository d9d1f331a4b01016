// Streams, events and graphs. The handles are the runtime's own. CUDA Driver API, "Stream Management", "Event
// Management", "Stream Memory Operations", "Graph Management".

#include "driver.h"

using namespace simcuda::driver;

namespace {

constexpr bool legacy_flags(unsigned flags) { return (flags & ~7U) == 0; }

CUresult write(const char* name, CUstream stream, CUdeviceptr to, cuuint64_t value, unsigned size, unsigned flags) {
  if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
  return call(name, [&] { return simcudaStreamWriteValue(stream, pointer(to), value, size); });
}
CUresult wait(const char* name, CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned size, unsigned flags) {
  if (!legacy_flags(flags & ~CU_STREAM_WAIT_VALUE_FLUSH)) return CUDA_ERROR_INVALID_VALUE;
  return call(name, [&] { return simcudaStreamWaitValue(stream, pointer(at), value, size, flags); });
}

}  // namespace

DRIVER_API CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  IN_CONTEXT(cudaStreamCreateWithFlags(stream, flags));
}
DRIVER_API CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  IN_CONTEXT(cudaStreamCreateWithPriority(stream, flags, priority));
}
DRIVER_API CUresult cuStreamDestroy_v2(CUstream stream) { FORWARD(cudaStreamDestroy(stream)); }
DRIVER_API CUresult cuStreamQuery(CUstream stream) { FORWARD(cudaStreamQuery(stream)); }
DRIVER_API CUresult cuStreamSynchronize(CUstream stream) { FORWARD(cudaStreamSynchronize(stream)); }
DRIVER_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  FORWARD(cudaStreamWaitEvent(stream, event, flags));
}
DRIVER_API CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  FORWARD(cudaStreamGetPriority(stream, priority));
}
DRIVER_API CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) { FORWARD(cudaStreamGetFlags(stream, flags)); }
DRIVER_API CUresult cuStreamGetId(CUstream stream, unsigned long long* id) { FORWARD(cudaStreamGetId(stream, id)); }
DRIVER_API CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  FORWARD(cudaStreamGetDevice(stream, device));
}
DRIVER_API CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  DRIVER_CALL({
    int device = 0;
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (const auto error = cudaStreamGetDevice(stream, &device)) return result(error);
    *context = context_of(device);
    return CUDA_SUCCESS;
  });
}
DRIVER_API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  FORWARD(cudaStreamIsCapturing(stream, reinterpret_cast<cudaStreamCaptureStatus*>(status)));
}
DRIVER_API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  FORWARD(cudaStreamBeginCapture(stream, static_cast<cudaStreamCaptureMode>(mode)));
}
DRIVER_API CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  FORWARD(cudaStreamEndCapture(stream, graph));
}
DRIVER_API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  FORWARD(cudaThreadExchangeStreamCaptureMode(reinterpret_cast<cudaStreamCaptureMode*>(mode)));
}
DRIVER_API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  FORWARD(cudaLaunchHostFunc(stream, function, data));
}

DRIVER_API CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr to, cuuint32_t value, unsigned flags) {
  return write(__func__, stream, to, value, 4, flags);
}
DRIVER_API CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr to, cuuint64_t value, unsigned flags) {
  return write(__func__, stream, to, value, 8, flags);
}
DRIVER_API CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
  return wait(__func__, stream, at, value, 4, flags);
}
DRIVER_API CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags) {
  return wait(__func__, stream, at, value, 8, flags);
}

DRIVER_API CUresult cuEventCreate(CUevent* event, unsigned flags) {
  IN_CONTEXT(cudaEventCreateWithFlags(event, flags));
}
DRIVER_API CUresult cuEventDestroy_v2(CUevent event) { FORWARD(cudaEventDestroy(event)); }
DRIVER_API CUresult cuEventRecord(CUevent event, CUstream stream) { FORWARD(cudaEventRecord(event, stream)); }
DRIVER_API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  FORWARD(cudaEventRecordWithFlags(event, stream, flags));
}
DRIVER_API CUresult cuEventQuery(CUevent event) { FORWARD(cudaEventQuery(event)); }
DRIVER_API CUresult cuEventSynchronize(CUevent event) { FORWARD(cudaEventSynchronize(event)); }
DRIVER_API CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  FORWARD(cudaEventElapsedTime(milliseconds, start, end));
}
DRIVER_API CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  FORWARD(cudaEventElapsedTime(milliseconds, start, end));
}
DRIVER_API CUresult cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  FORWARD(cudaIpcGetEventHandle(reinterpret_cast<cudaIpcEventHandle_t*>(handle), event));
}
DRIVER_API CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  FORWARD(cudaIpcOpenEventHandle(event, reinterpret_cast<cudaIpcEventHandle_t&>(handle)));
}

DRIVER_API CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  FORWARD(cudaGraphInstantiateWithFlags(exec, graph, flags));
}
DRIVER_API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) { FORWARD(cudaGraphLaunch(exec, stream)); }
DRIVER_API CUresult cuGraphExecDestroy(CUgraphExec exec) { FORWARD(cudaGraphExecDestroy(exec)); }
DRIVER_API CUresult cuGraphDestroy(CUgraph graph) { FORWARD(cudaGraphDestroy(graph)); }
DRIVER_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  FORWARD(cudaGraphGetNodes(graph, nodes, count));
}
DRIVER_API CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned flags) {
  FORWARD(cudaGraphDebugDotPrint(graph, path, flags));
}
