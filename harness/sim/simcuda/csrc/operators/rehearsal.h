// What a kernel refuses: CUDA's kernels are launched behind checks on the host, the CPU's check when they run, which is
// too late here. Each new kind of launch is tried on the host first, with ones in the place of all values, and zeros in
// the place of indices.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <string>

namespace simcuda {

// Throws what the CPU's kernel throws for arguments of these types, sizes and numbers. Nothing for large tensors, nor
// for a kind of launch that was tried before.
using Rehearsal = void (*)(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

// That of one operator; null for one that takes neither ones nor zeros. Types of 16 bits can be tried as float32.
Rehearsal rehearsal(const std::string& name, bool in_float = false);

}  // namespace simcuda
