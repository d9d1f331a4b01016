// Green contexts: parts of a device's multiprocessors. Here they are contexts like others, and no part of anything:
// work in them is right and ordered, but as fast as elsewhere. CUDA Driver API, "Green Contexts".
#pragma once

#include <cuda.h>

namespace simcuda::driver {

// The device of a green context by its handle as a context; -1 if it is none.
int device_of_green(CUcontext context);

}  // namespace simcuda::driver
