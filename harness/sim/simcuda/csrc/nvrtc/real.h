// NVIDIA's NVRTC, which needs no GPU. SIMCUDA_NVRTC names its library.
#pragma once

// nvrtc.h is not included: its package is not among those that the build needs. Names and values are those of nvrtc.h.
using nvrtcResult = int;
using nvrtcProgram = struct _nvrtcProgram*;

#define NVRTC_API extern "C" __attribute__((visibility("default")))

namespace simcuda::nvrtc {

constexpr nvrtcResult success = 0, internal_error = 11;

// Returns a function of NVIDIA's library; null, with a line on stderr, if there is none.
void* real(const char* name);

// Calls a function of NVIDIA's library.
template <typename... Arguments>
nvrtcResult call(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<nvrtcResult (*)(Arguments...)>(real(name));
  return function != nullptr ? function(arguments...) : internal_error;
}

}  // namespace simcuda::nvrtc
