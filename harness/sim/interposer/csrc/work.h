// The work that is queued in streams: kernels, copies and fills.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace interposer {

enum class Work { kernel, other };

// Gives work to a stream, with all faults of work except those of copies. `now` passes the work to the runtime. `later`
// does so after this call; null if that is not possible.
cudaError_t give(cudaStream_t stream, Work kind, const std::function<cudaError_t()>& now,
                 std::function<cudaError_t()> later);

void capture_begins();

}  // namespace interposer
