// What a stream is given to do: kernels, copies and fills.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace interposer {

enum class Work { kernel, other };

// Gives a piece of work to a stream, with all faults of such pieces but those of copies. `now` gives it to the runtime.
// `later` does so too, after this call; null if that is not possible.
cudaError_t give(cudaStream_t stream, Work kind, const std::function<cudaError_t()>& now,
                 std::function<cudaError_t()> later);

void capture_begins();

}  // namespace interposer
