// Tensors made on the device: memory allocated at the call, contents whatever its stream leaves there.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "common.h"

namespace soft::aten {

at::Tensor make_strided(Device& device, at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype);

// Gives the tensor these sizes and strides, and its storage the bytes for them when it has too few.
void resize_to(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

}  // namespace soft::aten
