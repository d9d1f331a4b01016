// The asynchronous operators other than pointwise ones, and those that have recipes of their own.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O1")  // hundreds of signatures, each called once a launch: more takes minutes and gains nothing
#endif

#include "operators.h"

#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>

#include <memory>

namespace soft::aten {

void add(torch::Library& library, const std::string& name, Recipe recipe) {
  const std::size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  if (c10::Dispatcher::singleton().findSchema({"aten::" + name.substr(0, dot), overload}).has_value()) {
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Launch>(std::move(recipe))));
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
#define SOFT_OPERATOR(op, function) add<at::_ops::op>(library, &at::meta::function);
#include "operators.def"
#undef SOFT_OPERATOR
  for (auto& [name, recipe] : recipes()) {
    add(library, name, std::move(recipe));
  }
}

}  // namespace soft::aten
