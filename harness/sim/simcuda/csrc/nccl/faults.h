// Injected faults. The interposer has the list of injected faults, and counts. Without the interposer there are none.
#pragma once

namespace simcuda::nccl {

enum class Fault : int {
#define FAULT(name, text) name,
#include "faults.def"
#undef FAULT
};

bool strikes(Fault fault);  // whether the fault happens now

}  // namespace simcuda::nccl
