// Replaces torch's CUDA kernels by the simulation's operators.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "copy.h"
#include "fallback.h"
#include "own.h"
#include "registrar.h"
#include "silence.h"
#include "sites.h"

namespace simcuda {
namespace {

using operators::Recipe;
using operators::Stack;

struct Refusal final : c10::OperatorKernel {
  explicit Refusal(std::string reason) : reason(std::move(reason)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* /*stack*/) const {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "the simulated CUDA has no ", op.operator_name(), ": it ", reason);
  }
  const std::string reason;
};

Recipe by_meta() {
  Recipe recipe;
  recipe.shape = [](const c10::OperatorHandle& op, Stack* stack) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  };
  return recipe;
}

c10::OperatorHandle find(const std::string& name) {
  const std::size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(),
                                                        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

// Returns the aten operators for which this torch has a CUDA kernel.
std::set<std::string> registered() {
  std::set<std::string> names;
  for (const auto& name : c10::Dispatcher::singleton().getRegistrationsForDispatchKey(c10::DispatchKey::CUDA)) {
    if (name.name.rfind("aten::", 0) == 0) {
      names.insert(name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name));
    }
  }
  return names;
}

void add_rest(Registrar& registrar, const std::string& name) {
  const c10::OperatorHandle op = find(name);
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) {
    return;  // the list of operators reports it as "unknown"
  }
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
    registrar.composite(name);
  } else if (op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) {
    registrar.launched(name, by_meta(), How::meta);
  } else {
    registrar.boxed(name, torch::CppFunction::makeFromBoxedFunction<&operators::fallback>(), How::synchronous);
  }
}

void add_all(Registrar& registrar, const std::set<std::string>& names) {
#define KEPT(name, reason) registrar.kept(name, reason);
#include "kept.def"
#undef KEPT
#define UNSERVED(name, reason)                                                                                      \
  registrar.boxed(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Refusal>(reason)), How::unserved, \
                  reason);
#include "unserved.def"
#undef UNSERVED
#define WAITING(name) \
  registrar.boxed(name, torch::CppFunction::makeFromBoxedFunction<&operators::fallback>(), How::waiting);
#include "waiting.def"
#undef WAITING
  registrar.composed("copy_", &copy_);
  add_attention(registrar);
  add_convolutions(registrar);
  add_foreach(registrar, names);
  add_nested(registrar);
  add_normalisations(registrar);
  add_recurrent(registrar);
  add_products(registrar);
  add_random_numbers(registrar);
  add_others(registrar);
  add_shapes(registrar);
  const operators::Add add = [&](const std::string& name, Recipe recipe) {
    if (names.count(name) != 0) {
      registrar.launched(name, std::move(recipe), How::shaped);
    }
  };
  operators::add_operators(add);
  for (const std::string& name : names) {
    if (!registrar.served(name)) {
      add_rest(registrar, name);
    }
  }
}

std::string& listed() {
  static auto* text = new std::string();
  return *text;
}

void install() {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  const Silence silence;  // torch warns when a kernel replaces another for the first time, and here all of them do
  const std::set<std::string> names = registered();
  Registrar registrar(*library);
  add_all(registrar, names);
  add_recurrent_layers();
  add_sparse();
  sites::install();
  std::ostringstream out;
  for (const std::string& name : names) {
    if (!registrar.served(name)) {
      out << name << "\tunknown\t\n";
    }
  }
  for (const auto& [name, served] : registrar.all()) {
    out << name << '\t' << text(served.how) << '\t' << served.reason << '\n';
  }
  listed() = out.str();
}

}  // namespace
}  // namespace simcuda

extern "C" {

// Call it once, in a process that has imported torch. Returns 0, or 1 after printing a line to stderr.
__attribute__((visibility("default"))) int simcuda_install_operators() {
  try {
    simcuda::install();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: the simulated CUDA's operators cannot be registered: %s\n", error.what());
    return 1;
  }
}

// One line per operator: its name, how it is served, and the reason if there is one, separated by tabs. "unknown" are
// operators for which this torch has a kernel and the simulation has none.
__attribute__((visibility("default"))) const char* simcuda_list_operators() { return simcuda::listed().c_str(); }
}
