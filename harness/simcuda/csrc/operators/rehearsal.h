// What a kernel refuses: CUDA's kernels are launched behind checks on the host, the CPU's check when they run, which is too
// late here. Each new kind of launch is tried on the host first, with ones in the place of all values.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>

namespace simcuda {

// Throws what the CPU's kernel throws for arguments of these types, sizes and numbers. Nothing for large tensors, nor for
// a kind of launch that was tried before.
void rehearse(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Whether ones are values that the operator takes: not where they are indices, which may be too large.
bool takes_ones(const std::string& name);

}  // namespace simcuda
