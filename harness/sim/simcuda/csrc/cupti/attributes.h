// The attributes of the activity API. They are about the memory that CUPTI takes of devices, and are kept and told; no
// record depends on them.
#pragma once

#include <cupti.h>

#include <cstddef>

namespace simcuda::cupti {

// CUPTI_ERROR_INVALID_PARAMETER if there is no such attribute, or a pointer is null;
// CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT if `*size` is less than that of the value.
CUptiResult get_attribute(CUpti_ActivityAttribute attribute, std::size_t* size, void* value);
CUptiResult set_attribute(CUpti_ActivityAttribute attribute, std::size_t* size, const void* value);

}  // namespace simcuda::cupti
