#pragma once

#include <ATen/core/Tensor.h>

namespace simcuda {

// Of `aten::copy_` with a tensor of CUDA on either side.
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking);

}  // namespace simcuda
