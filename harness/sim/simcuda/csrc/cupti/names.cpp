#include "names.h"

#include <string_view>
#include <unordered_map>

namespace simcuda::cupti {

namespace {

using Functions = std::unordered_map<std::string_view, Function>;

Function find(const Functions& functions, const char* name) {
  const auto found = functions.find(name);
  return found == functions.end() ? Function{0, name} : found->second;
}

}  // namespace

Function runtime_function(const char* name) {
  static const auto* const functions = new Functions{
#define CALLBACK(number, name, full) {#name, {number, #name}},
#include "runtime_callbacks.def"
#undef CALLBACK
      // On a GPU, operators launch kernels with this function.
      {"simcudaLaunch", {CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, "cudaLaunchKernel"}},
  };
  return find(*functions, name);
}

Function driver_function(const char* name) {
  static const auto* const functions = new Functions{
#define CALLBACK(number, name, full) {#name, {number, #name}},
#include "driver_callbacks.def"
#undef CALLBACK
  };
  return find(*functions, name);
}

const char* runtime_name(CUpti_CallbackId id) {
  switch (id) {
#define CALLBACK(number, name, full) \
  case number:                       \
    return #full;
#include "runtime_callbacks.def"
#undef CALLBACK
    default:
      return nullptr;
  }
}

const char* driver_name(CUpti_CallbackId id) {
  switch (id) {
#define CALLBACK(number, name, full) \
  case number:                       \
    return #full;
#include "driver_callbacks.def"
#undef CALLBACK
    default:
      return nullptr;
  }
}

}  // namespace simcuda::cupti
