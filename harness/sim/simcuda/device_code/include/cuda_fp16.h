// NVIDIA's header for the host, and the functions that it has for devices only.
#pragma once

#include "simcuda_undevice.h"
#include_next <cuda_fp16.h>

#include "simcuda_half.h"
#include "simcuda_redevice.h"

SIMCUDA_HALF(__half, __half2, __half2float, __float2half, half)
