// CUDA's differences in operators that the CPU has, too.
#pragma once

#include <string>

#include "launch.h"

namespace simcuda {

// Returns the recipe with CUDA's differences: checks at the launch, and bodies.
operators::Recipe checked(const std::string& name, operators::Recipe recipe);

}  // namespace simcuda
