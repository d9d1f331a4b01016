// What CUPTI asks of the runtime: nothing, as long as no record and no callback is enabled.
#pragma once

#include <cupti.h>

namespace simcuda::cupti {

// To be called when what is enabled may have changed. Returns `result`.
CUptiResult observe_what_is_enabled(CUptiResult result = CUPTI_SUCCESS);

}  // namespace simcuda::cupti
