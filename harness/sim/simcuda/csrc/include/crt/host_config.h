// CUDA's file of this name checks the host compiler. Here, nothing is compiled with nvcc.
#pragma once
