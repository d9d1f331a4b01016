// Device memory as torch's storages hold it.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

#include "common.h"

namespace soft::aten {

// Memory of `device`, for use on the stream that is current there; null with its device for 0 bytes.
c10::DataPtr allocate(std::size_t bytes, Device& device);

// Keeps the memory from being given away before the stream has come to its end. Nothing for memory of other origin.
void record_on(const c10::DataPtr& data, Stream& stream);

}  // namespace soft::aten
