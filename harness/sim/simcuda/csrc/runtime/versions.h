// Differences between the major versions of CUDA.
#pragma once

#include <cuda_runtime_api.h>

// Graph calls that take edge data. In CUDA 12 their names have a suffix, and the plain names are calls without edge
// data (cuda12.cpp).
#if CUDART_VERSION >= 13000
#define SIMCUDA_WITH_EDGES(name, suffix) name
#else
#define SIMCUDA_WITH_EDGES(name, suffix) name##suffix
#endif
