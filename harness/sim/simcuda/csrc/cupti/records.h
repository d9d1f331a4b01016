// The records of activities: which kinds are enabled, and the contents of the records. After enabling or disabling a
// kind, call observe_what_is_enabled (observer.h).
#pragma once

#include <cupti.h>

#include <cstdint>

#include "simcuda_activity.h"

namespace simcuda::cupti {

// Returns CUPTI_ERROR_INVALID_KIND for an unsupported kind. Returns CUPTI_ERROR_NOT_COMPATIBLE for one of the two kinds
// of kernels while the other one is enabled.
CUptiResult enable(CUpti_ActivityKind kind, bool enabled);
// Enables or disables a single function of the runtime or of the driver, until its kind is enabled or disabled.
CUptiResult enable_call(CUpti_CallbackId id, bool driver, bool enabled);
bool records_enabled();
void disable_records();

void set_event_times(bool enabled);         // whether records of events have the time when the device reached them
void set_unfinished_queries(bool enabled);  // whether queries that return cudaErrorNotReady are recorded
CUptiResult set_thread_ids(CUpti_ActivityThreadIdType type);
CUpti_ActivityThreadIdType thread_ids();

// External ids that the calling thread assigns to its current work.
CUptiResult push_external(CUpti_ExternalCorrelationKind kind, std::uint64_t id);
CUptiResult pop_external(CUpti_ExternalCorrelationKind kind, std::uint64_t* id);

void add_record(const SimcudaActivity& activity);

}  // namespace simcuda::cupti
