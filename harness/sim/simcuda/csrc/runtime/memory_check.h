// SIMCUDA_CHECK=memory: accesses that the simulation could make, and that a GPU refuses.
#pragma once

#include <driver_types.h>

#include <vector>

#include "races.h"

namespace simcuda {

class Device;

// Returns the error that the accesses of a kernel cause on a GPU, and adds the first such access to the conflicts;
// cudaSuccess if there is none, or without the check.
cudaError_t refused_accesses(const Device& device, const std::vector<races::Access>& accesses,
                             const races::Accessor& accessor, races::Conflicts& conflicts);

}  // namespace simcuda
