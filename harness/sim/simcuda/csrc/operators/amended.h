// What is different on CUDA in operators that the CPU has too.
#pragma once

#include <string>

#include "launch.h"

namespace simcuda {

// The recipe with what is different on CUDA: checks at the launch, and bodies.
operators::Recipe checked(const std::string& name, operators::Recipe recipe);

}  // namespace simcuda
