// Functions that NVIDIA's NVRTC serves alone.

#include <cstddef>

#include "real.h"

using namespace simcuda::nvrtc;

NVRTC_API const char* nvrtcGetErrorString(nvrtcResult result) {
  const auto function = reinterpret_cast<const char* (*)(nvrtcResult)>(real("nvrtcGetErrorString"));
  return function != nullptr ? function(result) : "NVRTC_ERROR_INTERNAL_ERROR";
}

NVRTC_API nvrtcResult nvrtcVersion(int* major, int* minor) { return call("nvrtcVersion", major, minor); }
NVRTC_API nvrtcResult nvrtcGetNumSupportedArchs(int* count) { return call("nvrtcGetNumSupportedArchs", count); }
NVRTC_API nvrtcResult nvrtcGetSupportedArchs(int* supported) { return call("nvrtcGetSupportedArchs", supported); }

#define OF_PROGRAM(name, type) \
  NVRTC_API nvrtcResult name(nvrtcProgram program, type value) { return call(#name, program, value); }

OF_PROGRAM(nvrtcGetProgramLogSize, std::size_t*)
OF_PROGRAM(nvrtcGetProgramLog, char*)
OF_PROGRAM(nvrtcGetLTOIRSize, std::size_t*)
OF_PROGRAM(nvrtcGetLTOIR, char*)
OF_PROGRAM(nvrtcGetOptiXIRSize, std::size_t*)
OF_PROGRAM(nvrtcGetOptiXIR, char*)
OF_PROGRAM(nvrtcGetNVVMSize, std::size_t*)
OF_PROGRAM(nvrtcGetNVVM, char*)
OF_PROGRAM(nvrtcGetPCHHeapSizeRequired, std::size_t*)

NVRTC_API nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char* expression, const char** lowered) {
  return call("nvrtcGetLoweredName", program, expression, lowered);
}
NVRTC_API nvrtcResult nvrtcSetFlowCallback(nvrtcProgram program, int (*callback)(void*, void*), void* payload) {
  return call("nvrtcSetFlowCallback", program, callback, payload);
}
NVRTC_API nvrtcResult nvrtcGetPCHCreateStatus(nvrtcProgram program) { return call("nvrtcGetPCHCreateStatus", program); }
NVRTC_API nvrtcResult nvrtcGetPCHHeapSize(std::size_t* size) { return call("nvrtcGetPCHHeapSize", size); }
NVRTC_API nvrtcResult nvrtcSetPCHHeapSize(std::size_t size) { return call("nvrtcSetPCHHeapSize", size); }
