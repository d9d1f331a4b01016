// Runs the blocks of a kernel, one after the other, in the calling thread.
#pragma once

#include <driver_types.h>
#include <simcuda_device.h>
#include <vector_types.h>

#include <functional>

namespace simcuda::simt {

// `reversed`: the last block, warp and lane run first. `failed`: whether the device has failed, so that the rest need
// not run. Throws KernelEnded.
void run_grid(const SimcudaKernel& kernel, dim3 grid, dim3 block, void** arguments, bool reversed,
              const std::function<bool()>& failed);

}  // namespace simcuda::simt
