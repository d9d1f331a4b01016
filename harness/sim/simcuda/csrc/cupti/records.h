// The records of activities: which are enabled, and what they say. Who enables or disables some calls
// observe_what_is_enabled (observer.h).
#pragma once

#include <cupti.h>

#include <cstdint>

#include "simcuda_activity.h"

namespace simcuda::cupti {

// CUPTI_ERROR_INVALID_KIND for a kind that is not served; CUPTI_ERROR_NOT_COMPATIBLE for one of the two kinds of
// kernels while the other one is enabled.
CUptiResult enable(CUpti_ActivityKind kind, bool enabled);
// Single functions of the runtime or of the driver, until their kind is enabled or disabled.
CUptiResult enable_call(CUpti_CallbackId id, bool driver, bool enabled);
bool records_enabled();
void disable_records();

void set_event_times(bool enabled);         // whether records of events have the time when the device came to them
void set_unfinished_queries(bool enabled);  // whether queries of what is not done yet are told
CUptiResult set_thread_ids(CUpti_ActivityThreadIdType type);
CUpti_ActivityThreadIdType thread_ids();

// Ids that the calling thread has given to what it does now.
CUptiResult push_external(CUpti_ExternalCorrelationKind kind, std::uint64_t id);
CUptiResult pop_external(CUpti_ExternalCorrelationKind kind, std::uint64_t* id);

void tell_record(const SimcudaActivity& activity);

}  // namespace simcuda::cupti
