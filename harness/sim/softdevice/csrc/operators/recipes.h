// Operators whose shapes torch's C++ cannot compute without data, and those whose body is not the CPU's kernel of the
// same name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launch.h"

namespace operators {

// By the operator's name and overload, as in "index_select.out".
std::vector<std::pair<std::string, Recipe>> recipes();

// The recipes of `convolution_overrideable` and its backward. A device registers them under the names that its dispatch
// key needs.
Recipe convolution();
Recipe convolution_backward();

// Changes the recipe of an operator whose shapes torch's C++ computes, where it must differ.
void amend(const std::string& name, Recipe& recipe);

}  // namespace operators
