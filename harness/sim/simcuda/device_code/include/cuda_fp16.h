// NVIDIA's header for the host, and the functions that it has for devices only.
#pragma once

#include_next <cuda_fp16.h>

#include "simcuda_half.h"
#include "simcuda_redevice.h"
#include "simcuda_undevice.h"

SIMCUDA_HALF(__half, __half2, __half2float, __float2half, half)
