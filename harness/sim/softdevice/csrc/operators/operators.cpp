// The asynchronous operators except pointwise ones, and those with their own recipes.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O1")  // hundreds of signatures, each called once per launch: -O2 takes minutes and gains nothing
#endif

#include "operators.h"

#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>

namespace operators {

bool known(const std::string& name) {
  const std::size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({"aten::" + name.substr(0, dot), overload}).has_value();
}

void add_operators(const Add& add) {
#define OPERATOR(op, function) add_shaped<at::_ops::op>(add, &at::meta::function);
#include "operators.def"
#undef OPERATOR
  for (auto& [name, recipe] : recipes()) {
    add(name, std::move(recipe));
  }
}

}  // namespace operators
