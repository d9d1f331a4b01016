// CUPTI's numbers and names of functions, contexts and streams.
#pragma once

#include <cupti.h>

#include <cstdint>

#include "simcuda_activity.h"

namespace simcuda::cupti {

constexpr CUpti_CallbackId most_ids = 2048;  // more than either the runtime or the driver has

// A function that CUPTI knows. `id` is 0 for an unknown function.
struct Function {
  CUpti_CallbackId id;
  const char* name;  // the name as programs write it
};
Function runtime_function(const char* name);
Function driver_function(const char* name);
inline Function function_of(const SimcudaActivity& call) {
  return call.driver ? driver_function(call.name) : runtime_function(call.name);
}

// Return the name with its version for a number; null if the number is unknown.
const char* runtime_name(CUpti_CallbackId id);
const char* driver_name(CUpti_CallbackId id);

constexpr std::uint32_t context_of(int device) { return static_cast<std::uint32_t>(device) + 1; }
// The numbering is that of a GPU: the legacy default stream is 7, and created streams are numbered from 14.
constexpr std::uint32_t stream_of(std::uint64_t number) {
  return number == simcuda_no_stream ? 0xffffffffU : number == 0 ? 7 : 13 + static_cast<std::uint32_t>(number);
}

}  // namespace simcuda::cupti
