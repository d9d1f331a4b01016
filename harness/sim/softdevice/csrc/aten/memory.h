// Device memory in torch's storages.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

#include "common.h"

namespace soft::aten {

// Allocates memory of `device` for its current stream. For 0 bytes, the pointer is null but has the device.
c10::DataPtr allocate(std::size_t bytes, Device& device);

// Keeps the memory from being reused until the stream has reached its current end. No effect on other allocators'
// memory.
void record_on(const c10::DataPtr& data, Stream& stream);

}  // namespace soft::aten
