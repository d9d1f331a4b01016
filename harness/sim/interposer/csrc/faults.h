// The faults of this process, from CUDA_INJECT, in the syntax of harness --inject.
#pragma once

namespace interposer {

enum class Fault : int {
#define FAULT(name, text) name,
#include "faults.def"
// Faults of the simulated NCCL, which queries this library by their names.
#include "../../simcuda/csrc/nccl/faults.def"
#undef FAULT
  count
};

bool any_injected();
bool injected(Fault fault);
bool strikes(Fault fault);  // whether the fault happens now; each true is counted

}  // namespace interposer
