// CUDA's differences in batch norm and layer norm, beyond the arithmetic in float32 (amended.cpp): statistics of 16-bit
// inputs are float32, too, and batch norm returns statistics in evaluation mode.
#pragma once

#include <string>

#include "launch.h"

namespace simcuda {

// Changes the recipe of a batch norm or a layer norm; leaves others unchanged.
void amend_norm(const std::string& name, operators::Recipe& recipe);

}  // namespace simcuda
