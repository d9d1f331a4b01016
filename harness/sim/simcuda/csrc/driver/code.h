// Modules whose kernels run on the host: the source in their image, compiled by the host's compiler.
#pragma once

#include <simcuda_device.h>

#include <memory>
#include <string>
#include <string_view>

#include "driver.h"

namespace simcuda::driver {

class Code {
 public:
  // Returns the code of an image. The compiler runs unless the cache has its result. Code is never unloaded, since
  // queued work and graphs may use it.
  static CUresult load(const void* image, std::unique_ptr<Code>& code);

  // Null if there is none of this name.
  const SimcudaKernel* kernel(std::string_view name) const;
  const SimcudaVariable* variable(std::string_view name) const;
  const SimcudaModule& module() const { return *module_; }

 private:
  explicit Code(const SimcudaModule& module) : module_(&module) {}
  const SimcudaModule* const module_;
};

}  // namespace simcuda::driver
