// What CUPTI calls functions, contexts and streams: their numbers and names.
#pragma once

#include <cupti.h>

#include <cstdint>

#include "simcuda_activity.h"

namespace simcuda::cupti {

constexpr CUpti_CallbackId most_ids = 2048;  // more than either interface has

// A function that CUPTI knows; `id` 0 if it does not.
struct Function {
  CUpti_CallbackId id;
  const char* name;  // as in programs
};
Function runtime_function(const char* name);
Function driver_function(const char* name);
inline Function function_of(const SimcudaActivity& call) {
  return call.driver ? driver_function(call.name) : runtime_function(call.name);
}

// The name with its version that a number stands for; null if unknown.
const char* runtime_name(CUpti_CallbackId id);
const char* driver_name(CUpti_CallbackId id);

constexpr std::uint32_t context_of(int device) { return static_cast<std::uint32_t>(device) + 1; }
// As on a GPU: the legacy default stream is 7, and created streams come from 14 on.
constexpr std::uint32_t stream_of(std::uint64_t number) {
  return number == simcuda_no_stream ? 0xffffffffU : number == 0 ? 7 : 13 + static_cast<std::uint32_t>(number);
}

}  // namespace simcuda::cupti
