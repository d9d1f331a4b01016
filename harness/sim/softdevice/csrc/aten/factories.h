// Tensors created on the device. The memory is allocated at the call; the contents are undefined until the stream
// writes them.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "common.h"

namespace soft::aten {

at::Tensor make_strided(Device& device, at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype);

// Sets the tensor's sizes and strides, and grows its storage if it is too small.
void resize_to(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

}  // namespace soft::aten
