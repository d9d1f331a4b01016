// The records of activities, from where they happen to the buffers of the program.
#pragma once

#include <cupti.h>

#include <cstdint>

namespace simcuda::cupti {

void enable(CUpti_ActivityKind kind, bool enabled);
bool enabled(CUpti_ActivityKind kind);
// Single functions of the runtime may be left out.
void enable_call(CUpti_CallbackId id, bool enabled);

void set_callbacks(CUpti_BuffersCallbackRequestFunc request, CUpti_BuffersCallbackCompleteFunc complete);
void set_clock(CUpti_TimestampCallbackFunc clock);
std::uint64_t now();

// Hands all records so far to the program, in the buffers that it provides.
void flush();
std::size_t take_dropped();  // how many records the program had no buffer for since it last asked
// The record behind `record`, or the first if that is null. CUPTI_ERROR_MAX_LIMIT_REACHED if there is none.
CUptiResult next(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record);

// Ids that the calling thread has given to what it does now.
CUptiResult push_external(CUpti_ExternalCorrelationKind kind, std::uint64_t id);
CUptiResult pop_external(CUpti_ExternalCorrelationKind kind, std::uint64_t* id);

// The number of a function of the runtime, and the name with its version that a number stands for; 0 and null if
// unknown.
CUpti_CallbackId call_id(const char* name);
const char* call_name(CUpti_CallbackId id);

}  // namespace simcuda::cupti
