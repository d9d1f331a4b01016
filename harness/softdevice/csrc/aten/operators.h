// How an operator for which torch's C++ tells the shapes comes into the library.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "launch.h"
#include "recipes.h"

namespace soft::aten {

// Nothing where this torch has no such operator. The name is as in "index_select.out".
void add(torch::Library& library, const std::string& name, Recipe recipe);

// `function` is what answers for the device "meta" in C++. The dispatcher's own entry is not used: torch replaces it with
// Python, which takes a hundred times as long and the interpreter's lock.
template <typename Operator>
void add(torch::Library& library, typename Operator::schema* function) {
  std::string name = std::string(Operator::name).substr(sizeof("aten::") - 1);
  if (Operator::overload_name[0] != '\0') {
    name += std::string(".") + Operator::overload_name;
  }
  Recipe recipe;
  recipe.shape = [kernel = c10::KernelFunction::makeFromUnboxedRuntimeFunction(function)](
                     const c10::OperatorHandle& op, Stack* stack) {
    kernel.callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  };
  amend(name, recipe);
  add(library, name, std::move(recipe));
}

}  // namespace soft::aten
