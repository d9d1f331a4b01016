// Checks before a launch. CUDA's kernels check their arguments on the host before the launch. The CPU's kernels check
// when they run, which is too late here. So the first launch of each kind is rehearsed on the host, with ones as values
// and zeros as indices.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>

namespace simcuda {

// Throws what the CPU's kernel throws for arguments of these types, sizes and numbers. Does nothing for large tensors,
// and for a kind of launch that was already rehearsed.
using Rehearsal = void (*)(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// Returns the rehearsal of an operator; null if it accepts neither ones nor zeros. 16-bit types can be rehearsed as
// float32.
Rehearsal rehearsal(const std::string& name, bool in_float = false);

}  // namespace simcuda
