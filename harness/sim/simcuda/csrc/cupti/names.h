// The functions that CUPTI tells of: their numbers and names.
#pragma once

#include <cupti.h>

namespace simcuda::cupti {

constexpr CUpti_CallbackId most_ids = 2048;  // more than either interface has

// A function that CUPTI knows; `id` 0 if it does not.
struct Function {
  CUpti_CallbackId id;
  const char* name;  // as in programs
};
Function runtime_function(const char* name);
Function driver_function(const char* name);

// The name with its version that a number stands for; null if unknown.
const char* runtime_name(CUpti_CallbackId id);
const char* driver_name(CUpti_CallbackId id);

}  // namespace simcuda::cupti
