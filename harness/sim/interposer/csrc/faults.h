// The faults of this process: CUDA_INJECT has them, as harness --inject writes them.
#pragma once

namespace interposer {

enum class Fault : int {
#define FAULT(name, text) name,
#include "faults.def"
// Those of the simulated NCCL, which asks this library by their names.
#include "../../simcuda/csrc/nccl/faults.def"
#undef FAULT
  count
};

bool any_injected();
bool injected(Fault fault);
bool strikes(Fault fault);  // whether it happens now; each true is counted

}  // namespace interposer
