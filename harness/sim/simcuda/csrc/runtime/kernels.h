// The kernels that programs have registered, and the simulated ones among them.
#pragma once

#include <driver_types.h>
#include <simcuda_device.h>
#include <vector_types.h>

#include <cstddef>
#include <optional>
#include <string>

#include "operation.h"

namespace simcuda {

// Record a kernel or a variable of a module in the program. `name` must never be freed.
void note_function(const void* function, const char* name);
void note_variable(const void* symbol, std::size_t size);

// Returns the demangled name of a kernel, given its handle. Throws Error(cudaErrorInvalidDeviceFunction).
const std::string& kernel_name(const void* function);

// What a launch of a kernel may ask for.
struct KernelLimits {
  unsigned threads = 1024;      // of a block
  unsigned registers = 32;      // of a thread
  unsigned static_shared = 0;   // bytes of a block
  unsigned dynamic_shared = 0;  // the most bytes of a launch
};
KernelLimits kernel_limits(const void* function);                    // throws as `kernel_name`
void set_most_dynamic_shared(const void* function, unsigned bytes);  // throws Error

// Returns the operation of a launch, with copies of the arguments; nothing if the kernel is not simulated. An
// unsimulated kernel is reported to stderr once, and at each launch with SIMCUDA_TRACE.
std::optional<Operation> kernel_operation(const void* function, dim3 grid, dim3 block, std::size_t shared,
                                          void** arguments);

// A variable of a module: its memory on the current device, initially zero, and its size. Throws
// Error(cudaErrorInvalidSymbol).
struct Variable {
  void* address;
  std::size_t size;
};
Variable find_variable(const void* symbol);

}  // namespace simcuda
