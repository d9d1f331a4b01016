// The operators that run later than their launch, for registration by the two devices.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <functional>
#include <string>
#include <utility>

#include "launch.h"
#include "recipes.h"

namespace operators {

// Receives one operator, by its name and overload as in "index_select.out".
using Add = std::function<void(const std::string& name, Recipe recipe)>;

// Pass all operators that have a recipe to `add`; this torch may lack some. The pointwise ones are in their own file,
// so that two compilers can run in parallel.
void add_operators(const Add& add);
void add_pointwise(const Add& add);

// `function` is the C++ function for the device "meta". The dispatcher's entry is not used: torch replaces it with
// Python, which takes a hundred times as long and needs the GIL.
template <typename Operator>
void add_shaped(const Add& add, typename Operator::schema* function) {
  std::string name = std::string(Operator::name).substr(sizeof("aten::") - 1);
  if (Operator::overload_name[0] != '\0') {
    name += std::string(".") + Operator::overload_name;
  }
  Recipe recipe;
  recipe.shape = [kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(function)](const c10::OperatorHandle& op,
                                                                                          Stack* stack) {
    kernel.callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  };
  amend(name, recipe);
  add(name, std::move(recipe));
}

// Returns whether this torch has the operator.
bool known(const std::string& name);

}  // namespace operators
