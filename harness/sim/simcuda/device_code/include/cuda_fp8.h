// NVIDIA's header for the host.
#pragma once

#include_next <cuda_fp8.h>

#include "simcuda_redevice.h"
#include "simcuda_undevice.h"
