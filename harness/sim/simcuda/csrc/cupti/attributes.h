// The attributes of the activity API. They concern the device memory that CUPTI uses. They are only stored and
// returned; no record depends on them.
#pragma once

#include <cupti.h>

#include <cstddef>

namespace simcuda::cupti {

// Return CUPTI_ERROR_INVALID_PARAMETER if the attribute does not exist or a pointer is null, and
// CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT if `*size` is less than the size of the value.
CUptiResult get_attribute(CUpti_ActivityAttribute attribute, std::size_t* size, void* value);
CUptiResult set_attribute(CUpti_ActivityAttribute attribute, std::size_t* size, const void* value);

}  // namespace simcuda::cupti
