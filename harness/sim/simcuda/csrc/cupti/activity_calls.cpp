// CUPTI API, "CUPTI Activity API".

#include <cupti.h>

#include "attributes.h"
#include "buffers.h"
#include "callbacks.h"
#include "clock.h"
#include "names.h"
#include "observer.h"
#include "records.h"

#define CUPTI_EXPORT extern "C" __attribute__((visibility("default")))

using namespace simcuda::cupti;

CUPTI_EXPORT CUptiResult cuptiGetTimestamp(uint64_t* time) {
  if (time == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *time = now();
  return CUPTI_SUCCESS;
}
CUPTI_EXPORT CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc clock) {
  if (clock == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  set_clock(clock);
  return CUPTI_SUCCESS;
}

CUPTI_EXPORT CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  return observe_what_is_enabled(enable(kind, true));
}
CUPTI_EXPORT CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  return observe_what_is_enabled(enable(kind, false));
}
CUPTI_EXPORT CUptiResult cuptiActivityEnableRuntimeApi(CUpti_CallbackId id, uint8_t enabled) {
  return observe_what_is_enabled(enable_call(id, false, enabled != 0));
}
CUPTI_EXPORT CUptiResult cuptiActivityEnableDriverApi(CUpti_CallbackId id, uint8_t enabled) {
  return observe_what_is_enabled(enable_call(id, true, enabled != 0));
}
CUPTI_EXPORT CUptiResult cuptiActivityEnableCudaEventDeviceTimestamps(uint8_t enabled) {
  set_event_times(enabled != 0);
  return CUPTI_SUCCESS;
}
CUPTI_EXPORT CUptiResult cuptiActivityEnableAllSyncRecords(uint8_t enabled) {
  set_unfinished_queries(enabled != 0);
  return CUPTI_SUCCESS;
}
// For GPUs of the Blackwell architecture; the simulated GPU is a Hopper.
CUPTI_EXPORT CUptiResult cuptiActivityEnableHWTrace(uint8_t enabled) {
  return enabled != 0 ? CUPTI_ERROR_NOT_SUPPORTED : CUPTI_SUCCESS;
}

CUPTI_EXPORT CUptiResult cuptiActivityGetAttribute(CUpti_ActivityAttribute attribute, size_t* size, void* value) {
  return get_attribute(attribute, size, value);
}
CUPTI_EXPORT CUptiResult cuptiActivitySetAttribute(CUpti_ActivityAttribute attribute, size_t* size, void* value) {
  return set_attribute(attribute, size, value);
}
CUPTI_EXPORT CUptiResult cuptiSetThreadIdType(CUpti_ActivityThreadIdType type) { return set_thread_ids(type); }
CUPTI_EXPORT CUptiResult cuptiGetThreadIdType(CUpti_ActivityThreadIdType* type) {
  if (type == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *type = thread_ids();
  return CUPTI_SUCCESS;
}

CUPTI_EXPORT CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                                        CUpti_BuffersCallbackCompleteFunc complete) {
  if (request == nullptr || complete == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  set_buffer_callbacks(request, complete);
  return CUPTI_SUCCESS;
}
CUPTI_EXPORT CUptiResult cuptiActivityFlushAll(uint32_t) {
  if (!has_buffer_callbacks()) return CUPTI_ERROR_INVALID_OPERATION;
  flush();
  return CUPTI_SUCCESS;
}
CUPTI_EXPORT CUptiResult cuptiActivityFlush(CUcontext, uint32_t, uint32_t flag) { return cuptiActivityFlushAll(flag); }
// A periodic flush returns full buffers only, and full buffers are already returned when they fill up.
CUPTI_EXPORT CUptiResult cuptiActivityFlushPeriod(uint32_t) { return CUPTI_SUCCESS; }
CUPTI_EXPORT CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record) {
  return next(buffer, valid, record);
}
CUPTI_EXPORT CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* dropped) {
  if (dropped == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *dropped = take_dropped();
  return CUPTI_SUCCESS;
}

CUPTI_EXPORT CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
  return push_external(kind, id);
}
CUPTI_EXPORT CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t* id) {
  return pop_external(kind, id);
}

CUPTI_EXPORT CUptiResult cuptiGetStreamIdEx(CUcontext, CUstream stream, uint8_t per_thread, uint32_t* id) {
  if (id == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  const auto number = simcudaStreamNumber(stream, per_thread);
  if (number == simcuda_no_stream) return CUPTI_ERROR_INVALID_STREAM;
  *id = stream_of(number);
  return CUPTI_SUCCESS;
}
CUPTI_EXPORT CUptiResult cuptiGetStreamId(CUcontext context, CUstream stream, uint32_t* id) {
  return cuptiGetStreamIdEx(context, stream, 0, id);
}
CUPTI_EXPORT CUptiResult cuptiGetGraphId(CUgraph graph, uint32_t* id) {
  if (id == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *id = simcudaGraphNumber(graph);
  return *id == 0 ? CUPTI_ERROR_INVALID_PARAMETER : CUPTI_SUCCESS;
}
CUPTI_EXPORT CUptiResult cuptiGetGraphExecId(CUgraphExec exec, uint32_t* id) {
  if (id == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *id = simcudaGraphExecNumber(exec);
  return *id == 0 ? CUPTI_ERROR_INVALID_PARAMETER : CUPTI_SUCCESS;
}
CUPTI_EXPORT CUptiResult cuptiGetGraphNodeId(CUgraphNode node, uint64_t* id) {
  if (id == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  *id = simcudaGraphNodeNumber(node);
  return *id == 0 ? CUPTI_ERROR_INVALID_PARAMETER : CUPTI_SUCCESS;
}

// The program keeps what was recorded; from now on nothing is recorded.
CUPTI_EXPORT CUptiResult cuptiFinalize() {
  disable_records();
  disable_callbacks();
  observe_what_is_enabled();
  if (has_buffer_callbacks()) flush();
  set_buffer_callbacks(nullptr, nullptr);
  set_clock(nullptr);
  return CUPTI_SUCCESS;
}
