// NVIDIA's header for the host.
#pragma once

// clang-format off: the order matters
#include "simcuda_undevice.h"
#include_next <cuda_fp8.h>
#include "simcuda_redevice.h"
// clang-format on
