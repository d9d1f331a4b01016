// Green contexts: partitions of a device's multiprocessors. Here they are ordinary contexts without a partition: work
// in them is correct and ordered, but runs at the usual speed. CUDA Driver API, "Green Contexts".
#pragma once

#include <cuda.h>

namespace simcuda::driver {

// Returns the device of a green context, given as a CUcontext; -1 if it is not a green context.
int device_of_green(CUcontext context);

}  // namespace simcuda::driver
