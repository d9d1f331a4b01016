// What differs between the major versions of CUDA.
#pragma once

#include <cuda_runtime_api.h>

// The calls for graphs that know data of edges. CUDA 12 has them under this name with a suffix, and older ones without
// edges beside them (cuda12.cpp).
#if CUDART_VERSION >= 13000
#define SIMCUDA_WITH_EDGES(name, suffix) name
#else
#define SIMCUDA_WITH_EDGES(name, suffix) name##suffix
#endif
