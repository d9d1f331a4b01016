#include "registrar.h"

#include <memory>

#include "amended.h"
#include "rehearsal.h"

namespace simcuda {
namespace {

// Runs the composite kernel on CUDA tensors: its operators go through the dispatcher.
void decompose(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, operators::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

}  // namespace

const char* text(How how) {
  switch (how) {
    case How::shaped:
      return "shaped";
    case How::meta:
      return "meta";
    case How::own:
      return "own";
    case How::composite:
      return "composite";
    case How::synchronous:
      return "synchronous";
    case How::waiting:
      return "waiting";
    case How::kept:
      return "kept";
    case How::unserved:
      return "unserved";
  }
  return "";
}

void Registrar::launched(const std::string& name, operators::Recipe recipe, How how) {
  if (operators::known(name) && !served(name)) {
    recipe = checked(name, std::move(recipe));
    if (!recipe.body) {
      recipe.check = rehearsal(name);
    }
    boxed(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<operators::Launch>(std::move(recipe))), how);
  }
}

void Registrar::boxed(const std::string& name, torch::CppFunction kernel, How how, std::string reason) {
  if (operators::known(name) && !served(name)) {
    library_.impl(name.c_str(), std::move(kernel));
    served_.emplace(name, Served{how, std::move(reason)});
  }
}

void Registrar::kept(const std::string& name, std::string reason) {
  if (operators::known(name)) {
    served_.emplace(name, Served{How::kept, std::move(reason)});
  }
}

void Registrar::composite(const std::string& name) {
  boxed(name, torch::CppFunction::makeFromBoxedFunction<&decompose>(), How::composite);
}

void Registrar::body(const std::string& name, operators::Body body) {
  operators::Recipe recipe;
  recipe.shape = body;
  recipe.body = std::move(body);
  launched(name, std::move(recipe), How::own);
}

}  // namespace simcuda
