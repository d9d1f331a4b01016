// The program's callback function, which is called at calls of the runtime and of the driver, and when a context is
// created. After enabling or disabling a callback, call observe_what_is_enabled (observer.h).
#pragma once

#include <cupti.h>

#include "simcuda_activity.h"

namespace simcuda::cupti {

CUptiResult subscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* data);
CUptiResult unsubscribe(CUpti_SubscriberHandle handle);
bool is_subscriber(CUpti_SubscriberHandle handle);

// Returns CUPTI_ERROR_INVALID_PARAMETER for an unknown domain or number. A null `id` stands for the whole domain.
CUptiResult enable_callback(CUpti_CallbackDomain domain, const CUpti_CallbackId* id, bool enabled);
CUptiResult callback_enabled(CUpti_CallbackDomain domain, CUpti_CallbackId id, bool& enabled);
void disable_callbacks();

bool call_callbacks_enabled();
bool context_callbacks_enabled();
void call_back(const SimcudaActivity& activity);

}  // namespace simcuda::cupti
