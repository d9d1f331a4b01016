// The asynchronous operators.
#include "operators.h"

#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace operators {
namespace {

// A function of at::meta without its type, and the code that calls it with the arguments on a stack, and replaces them
// with the results. Operators of one type share this code, and it is minimal: torch's own adapter, KernelFunction,
// takes ten times as long to compile.
using Function = void (*)();
using Caller = void (*)(Function function, Stack* stack);

struct Shaped {
  const char* name;  // with the namespace "aten"
  const char* overload;
  Function function;
  Caller call;
};

void push(Stack& stack, const at::Tensor& result) { stack.emplace_back(result); }

template <typename... Results>
void push(Stack& stack, const std::tuple<Results...>& results) {
  std::apply([&stack](const auto&... each) { (push(stack, each), ...); }, results);
}

template <typename Result, typename... Parameters, std::size_t... index>
Stack results_of(Result (*function)(Parameters...), Stack& stack, std::index_sequence<index...>) {
  using namespace c10::impl;
  Stack results;
  push(results, function(ivalue_to_arg<typename decay_if_not_tensor<Parameters>::type, false>::call(
                    torch::jit::peek(stack, index, sizeof...(Parameters)))...));
  return results;
}

template <typename Result, typename... Parameters>
void call(Function function, Stack* stack) {
  Stack results = results_of(reinterpret_cast<Result (*)(Parameters...)>(function), *stack,
                             std::index_sequence_for<Parameters...>());
  torch::jit::drop(*stack, sizeof...(Parameters));
  std::move(results.begin(), results.end(), std::back_inserter(*stack));
}

template <typename Result, typename... Parameters>
Shaped shaped(const char* name, const char* overload, Result (*function)(Parameters...)) {
  return {name, overload, reinterpret_cast<Function>(function), &call<Result, Parameters...>};
}

}  // namespace

bool known(const std::string& name) {
  const std::size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchema({"aten::" + name.substr(0, dot), overload}).has_value();
}

void add_operators(const Add& add) {
  // The C++ functions for the device "meta". The dispatcher's entries are not used: torch replaces them with Python,
  // which takes a hundred times as long and needs the GIL.
  const Shaped all[] = {
#define OPERATOR(op, function) \
  shaped(at::_ops::op::name, at::_ops::op::overload_name, static_cast<at::_ops::op::schema*>(&at::meta::function)),
#include "operators.def"
#undef OPERATOR
  };
  for (const Shaped& each : all) {
    std::string name = std::string(each.name).substr(sizeof("aten::") - 1);
    if (each.overload[0] != '\0') {
      name += std::string(".") + each.overload;
    }
    Recipe recipe;
    recipe.shape = [call = each.call, function = each.function](const c10::OperatorHandle& /*op*/, Stack* stack) {
      call(function, stack);
    };
    amend(name, recipe);
    add(name, std::move(recipe));
  }
  for (auto& [name, recipe] : recipes()) {
    add(name, std::move(recipe));
  }
}

}  // namespace operators
