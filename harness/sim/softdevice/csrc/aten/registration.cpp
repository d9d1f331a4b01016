// Registers the device's operators with torch.
#include <ATen/core/boxing/KernelFunction.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <utility>

#include "../operators/fallback.h"
#include "../operators/launch.h"
#include "../operators/operators.h"

namespace soft::aten {
namespace {

operators::Add into(torch::Library& library) {
  return [&library](const std::string& name, operators::Recipe recipe) {
    if (operators::known(name)) {
      auto kernel = std::make_unique<operators::Launch>(std::move(recipe));
      library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
    }
  };
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  operators::add_operators(into(library));
  into(library)("convolution_overrideable", operators::convolution());
  into(library)("convolution_backward_overrideable", operators::convolution_backward());
  // torch registers these for each of its own devices, and 2.11 then has no kernel for a third-party device.
  for (const char* name : {"ldexp.Tensor", "ldexp_", "ldexp.out"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&operators::fallback>());
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&operators::fallback>());
}

}  // namespace soft::aten
