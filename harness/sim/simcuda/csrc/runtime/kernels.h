// The kernels that programs have registered, and what is simulated of them.
#pragma once

#include <driver_types.h>
#include <vector_types.h>

#include <cstddef>
#include <optional>
#include <string>

#include "operation.h"

namespace simcuda {

// A kernel or a variable that a module of the program has. `name` lives for ever.
void note_function(const void* function, const char* name);
void note_variable(const void* symbol, std::size_t size);

// The demangled name of the kernel whose host function this is. Throws Error(cudaErrorInvalidDeviceFunction).
const std::string& kernel_name(const void* function);

// What a launch of the kernel does. The arguments are copied. Nothing if the kernel is not simulated: that is told to
// stderr, once for each kernel, and at each launch with SIMCUDA_TRACE.
std::optional<Operation> kernel_operation(const void* function, dim3 grid, dim3 block, std::size_t shared,
                                          void** arguments);

// A variable of a module: its size, and its memory on the current device, zero at first. Throws
// Error(cudaErrorInvalidSymbol).
struct Variable {
  void* address;
  std::size_t size;
};
Variable find_variable(const void* symbol);

}  // namespace simcuda
