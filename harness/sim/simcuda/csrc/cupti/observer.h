// CUPTI's observer in the runtime: it observes nothing while no record and no callback is enabled.
#pragma once

#include <cupti.h>

namespace simcuda::cupti {

// Call this after enabling or disabling records or callbacks. Returns `result`.
CUptiResult observe_what_is_enabled(CUptiResult result = CUPTI_SUCCESS);

}  // namespace simcuda::cupti
