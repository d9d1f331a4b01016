// The operators that run later than their launch, for registration by the two devices.
#pragma once

#include <functional>
#include <string>

#include "launch.h"
#include "recipes.h"

namespace operators {

// Receives one operator, by its name and overload as in "index_select.out".
using Add = std::function<void(const std::string& name, Recipe recipe)>;

// Passes all operators that have a recipe to `add`; this torch may lack some.
void add_operators(const Add& add);

// Returns whether this torch has the operator.
bool known(const std::string& name);

}  // namespace operators
