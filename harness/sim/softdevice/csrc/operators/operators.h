// The operators that run later than their launch, for whoever registers them.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <functional>
#include <string>
#include <utility>

#include "launch.h"
#include "recipes.h"

namespace operators {

// Takes one operator, by its name and overload as in "index_select.out".
using Add = std::function<void(const std::string& name, Recipe recipe)>;

// All operators for which there is a recipe; the pointwise ones are apart so that two compilers can work on them. This
// torch may not have each of them.
void add_operators(const Add& add);
void add_pointwise(const Add& add);

// `function` is what answers for the device "meta" in C++. The dispatcher's own entry is not used: torch replaces it
// with Python, which takes a hundred times as long and the interpreter's lock.
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

// Whether this torch has the operator.
bool known(const std::string& name);

}  // namespace operators
