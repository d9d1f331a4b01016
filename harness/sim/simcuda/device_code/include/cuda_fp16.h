// NVIDIA's header for the host, and the functions that it has for devices only.
#pragma once

// clang-format off: the order matters
#include "simcuda_undevice.h"
#include_next <cuda_fp16.h>
#include "simcuda_half.h"
#include "simcuda_redevice.h"
// clang-format on

SIMCUDA_HALF(__half, __half2, __half2float, __float2half, half)
