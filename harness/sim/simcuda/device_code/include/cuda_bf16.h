// NVIDIA's header for the host, and the functions that it has for devices only.
#pragma once

// clang-format off: the order matters
#include "simcuda_undevice.h"
#include_next <cuda_bf16.h>
#include "simcuda_half.h"
#include "simcuda_redevice.h"
// clang-format on

SIMCUDA_HALF(__nv_bfloat16, __nv_bfloat162, __bfloat162float, __float2bfloat16, bfloat16)
