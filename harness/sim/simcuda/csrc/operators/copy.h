#pragma once

#include <ATen/core/Tensor.h>

namespace simcuda {

// Implements `aten::copy_` with a CUDA tensor on either side.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking);

}  // namespace simcuda
