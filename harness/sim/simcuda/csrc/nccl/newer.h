// The implementation of functions that only newer headers of NCCL declare, without the types of those headers. All
// return an ncclResult_t.
#pragma once

#include <cstdint>

namespace simcuda::nccl {

int refuse(const char* function);  // refuses a function that needs a GPU
int suspend(void* communicator, bool suspended);
int statistic(void* communicator, int which, std::uint64_t* value);

}  // namespace simcuda::nccl
