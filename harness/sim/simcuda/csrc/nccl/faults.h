// Faults on demand. The interposer has the list of what is injected, and counts; without it nothing is.
#pragma once

namespace simcuda::nccl {

enum class Fault : int {
#define FAULT(name, text) name,
#include "faults.def"
#undef FAULT
};

bool strikes(Fault fault);  // whether it happens now

}  // namespace simcuda::nccl
