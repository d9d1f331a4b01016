// What is different on CUDA in batch norm and layer norm, beside the arithmetic in float32 (amended.cpp): statistics of
// inputs of 16 bits are in float32, too, and batch norm has some where it evaluates.
#pragma once

#include <string>

#include "launch.h"

namespace simcuda {

// Changes the recipe of a batch norm or a layer norm, and no other.
void amend_norm(const std::string& name, operators::Recipe& recipe);

}  // namespace simcuda
