// The kernels of the program's modules.
#pragma once

#include <simcuda_device.h>

#include "driver.h"

namespace simcuda::driver {

// Returns the kernel of a CUfunction or a CUkernel; null for any other pointer.
const SimcudaKernel* kernel_of(const void* handle);

}  // namespace simcuda::driver
