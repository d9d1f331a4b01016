// Operators whose results' shapes torch's C++ does not tell without data, and those that have another body than the
// CPU's kernel of the same name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launch.h"

namespace operators {

// By the operator's name and overload, as in "index_select.out".
std::vector<std::pair<std::string, Recipe>> recipes();

// Of `convolution_overrideable` and its backward, which a front registers under the names that its key wants.
Recipe convolution();
Recipe convolution_backward();

// Changes what has to be different in the recipe of an operator for which torch's C++ does tell the shapes.
void amend(const std::string& name, Recipe& recipe);

}  // namespace operators
