// What CUPTI asks of the runtime: nothing, as long as no record and no callback is enabled.
#pragma once

#include <cupti.h>

#include <cstdint>

#include "names.h"
#include "simcuda_activity.h"

namespace simcuda::cupti {

// To be called when what is enabled has changed.
void observe_what_is_enabled();

void set_clock(CUpti_TimestampCallbackFunc clock);  // null: that of the system
std::uint64_t now();

constexpr std::uint32_t context_of(int device) { return static_cast<std::uint32_t>(device) + 1; }
// As on a GPU: the legacy default stream is 7, and created streams come from 14 on.
constexpr std::uint32_t stream_of(std::uint64_t number) {
  return number == simcuda_no_stream ? 0xffffffffU : number == 0 ? 7 : 13 + static_cast<std::uint32_t>(number);
}
inline Function function_of(const SimcudaActivity& call) {
  return call.driver ? driver_function(call.name) : runtime_function(call.name);
}

}  // namespace simcuda::cupti
