// The prologue and epilogue of each function of the interface.
#pragma once

#include <new>
#include <type_traits>

#include "activity.h"
#include "error.h"

#define SIMCUDA_EXPORT extern "C" __attribute__((visibility("default")))

namespace simcuda {

// The conditions that must hold before a call does its work.
enum class Needs {
  nothing,  // works in a forked child and in a host function, and initialises nothing
  driver,   // initialises CUDA in this process; a child forked after that gets cudaErrorInitializationError
  device,   // and the current device has not failed: otherwise the call returns its sticky error
};

cudaError_t begin_call(const char* name, Needs needs);

// The body returns a cudaError_t or nothing, and may throw Error. Calls are counted by `name` (SIMCUDA_TRACE).
template <Needs needs, typename Body>
cudaError_t call(const char* name, Body&& body) noexcept {
  activity::Call record(name);
  if (const cudaError_t refused = begin_call(name, needs); refused != cudaSuccess) return record.returns(fail(refused));
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      body();
      return cudaSuccess;
    } else {
      return record.returns(fail(body()));
    }
  } catch (const Error& error) {
    return record.returns(fail(error.code));
  } catch (const std::bad_alloc&) {
    return record.returns(fail(cudaErrorMemoryAllocation));
  } catch (...) {
    return record.returns(fail(cudaErrorUnknown));
  }
}

// SIMCUDA_CALL(needs, { ... }) takes the rest of the function as its body.
#define SIMCUDA_CALL(needs, ...) return ::simcuda::call<::simcuda::Needs::needs>(__func__, [&]() __VA_ARGS__)

}  // namespace simcuda
