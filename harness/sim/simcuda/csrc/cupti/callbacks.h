// The program's function that is called back at calls of the runtime and of the driver, and when a context is made. Who
// enables or disables some calls observe_what_is_enabled (observer.h).
#pragma once

#include <cupti.h>

#include "simcuda_activity.h"

namespace simcuda::cupti {

CUptiResult subscribe(CUpti_SubscriberHandle* handle, CUpti_CallbackFunc callback, void* data);
CUptiResult unsubscribe(CUpti_SubscriberHandle handle);
bool is_subscriber(CUpti_SubscriberHandle handle);

// CUPTI_ERROR_INVALID_PARAMETER for a domain or number that there is not. `id` null means all of the domain.
CUptiResult enable_callback(CUpti_CallbackDomain domain, const CUpti_CallbackId* id, bool enabled);
CUptiResult callback_enabled(CUpti_CallbackDomain domain, CUpti_CallbackId id, bool& enabled);
void disable_callbacks();

bool call_callbacks_enabled();
bool context_callbacks_enabled();
void call_back(const SimcudaActivity& activity);

}  // namespace simcuda::cupti
