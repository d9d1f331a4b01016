// Enabling, the program's buffers, callbacks, and the rest of the interface.

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>

#include "client.h"

namespace simcuda::cupti::testing {

namespace {

std::size_t recorded_calls() { return records<CallRecord>(CUPTI_ACTIVITY_KIND_RUNTIME).size(); }

struct Callback {
  CUpti_CallbackDomain domain;
  CUpti_CallbackId id;
  CUpti_ApiCallbackSite site;
  std::string name;
  int result;
  std::uint32_t correlation;
  std::uint64_t* data;
};
std::vector<Callback> callbacks;
std::vector<CUcontext> contexts;
bool finalize = false;

void called_back(void* data, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* what) {
  EQUAL(data, static_cast<void*>(&callbacks));
  if (domain == CUPTI_CB_DOMAIN_RESOURCE) {
    contexts.push_back(static_cast<const CUpti_ResourceData*>(what)->context);
    return;
  }
  const auto& call = *static_cast<const CUpti_CallbackData*>(what);
  const bool exit = call.callbackSite == CUPTI_API_EXIT;
  callbacks.push_back({domain, id, call.callbackSite, call.functionName,
                       exit ? *static_cast<const int*>(call.functionReturnValue) : -1, call.correlationId,
                       call.correlationData});
  int device = 0;
  OK(cudaGetDevice(&device));  // a call within a callback is not reported
  if (exit && finalize) OK(cuptiFinalize());
}

CUpti_SubscriberHandle subscribed() {
  CUpti_SubscriberHandle handle = nullptr;
  OK(cuptiSubscribe(&handle, called_back, &callbacks));
  return handle;
}

}  // namespace

TEST(nothing_is_told_unless_it_is_enabled) {
  register_client();
  launch(nullptr, "before", [] {});
  OK(cudaDeviceSynchronize());
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  launch(nullptr, "told", [] {});
  OK(cudaDeviceSynchronize());
  OK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  launch(nullptr, "after", [] {});
  OK(cudaDeviceSynchronize());
  flush();
  EQUAL(client().records.size(), 1u);
  EQUAL(std::string(records<KernelRecord>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)[0].name), "told");
  EQUAL(client().requests, 1);
}

TEST(work_that_was_asked_for_before_is_not_told) {
  register_client();
  const auto stream = new_stream();
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  Gate gate;
  launch(stream, "before", gate.work());
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  launch(stream, "told", [] {});
  gate.open();
  OK(cudaStreamSynchronize(stream));
  flush();
  const auto kernels = records<KernelRecord>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  EQUAL(kernels.size(), 1u);
  EQUAL(std::string(kernels[0].name), "told");
}

TEST(single_functions_are_told_or_left_out) {
  register_client();
  int device = 0;
  OK(cuptiActivityEnableRuntimeApi(CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020, 1));
  OK(cudaGetDevice(&device));  // recorded
  OK(cudaSetDevice(0));
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  OK(cuptiActivityEnableRuntimeApi(CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020, 0));
  OK(cudaGetDevice(&device));
  OK(cudaSetDevice(0));                                  // recorded
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));  // overrides the single function
  OK(cudaGetDevice(&device));                            // recorded
  OK(cuptiActivityDisable(CUPTI_ACTIVITY_KIND_RUNTIME));
  OK(cudaGetDevice(&device));
  flush();
  std::vector<CUpti_CallbackId> ids;
  for (const auto& call : records<CallRecord>(CUPTI_ACTIVITY_KIND_RUNTIME)) ids.push_back(call.cbid);
  const std::vector<CUpti_CallbackId> expected = {CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020,
                                                  CUPTI_RUNTIME_TRACE_CBID_cudaSetDevice_v3020,
                                                  CUPTI_RUNTIME_TRACE_CBID_cudaGetDevice_v3020};
  CHECK(ids == expected);
}

TEST(kinds_that_are_not_served_are_refused) {
  EQUAL(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_PCIE), CUPTI_ERROR_INVALID_KIND);
  EQUAL(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_INVALID), CUPTI_ERROR_INVALID_KIND);
  EQUAL(cuptiActivityEnable(static_cast<CUpti_ActivityKind>(1000)), CUPTI_ERROR_INVALID_KIND);
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_KERNEL));
  EQUAL(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), CUPTI_ERROR_NOT_COMPATIBLE);
}

TEST(a_full_buffer_comes_back_at_once_and_the_rest_at_a_flush) {
  register_client();
  client().most = 2;
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  int device = 0;
  for (int i = 0; i < 5; ++i) OK(cudaGetDevice(&device));
  EQUAL(client().completions, 2);
  EQUAL(recorded_calls(), 4u);
  OK(cuptiActivityFlushPeriod(1));
  flush();
  EQUAL(client().completions, 3);
  EQUAL(recorded_calls(), 5u);
  flush();  // there is nothing left to return
  OK(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
  EQUAL(client().completions, 3);
  EQUAL(client().requests, 3);
}

TEST(buffers_are_filled_as_far_as_records_fit) {
  register_client();
  client().size = 3 * sizeof(CallRecord) + 8;
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  int device = 0;
  for (int i = 0; i < 4; ++i) OK(cudaGetDevice(&device));
  EQUAL(client().completions, 1);
  EQUAL(recorded_calls(), 3u);
}

TEST(records_without_a_buffer_are_counted_as_dropped) {
  register_client();
  client().has_buffers = false;
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  int device = 0;
  for (int i = 0; i < 3; ++i) OK(cudaGetDevice(&device));
  std::size_t dropped = 0;
  OK(cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped));
  EQUAL(dropped, 3u);
  OK(cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped));
  EQUAL(dropped, 0u);
  client().has_buffers = true;
  client().size = 16;  // smaller than any record
  OK(cudaGetDevice(&device));
  client().size = 4096;
  OK(cudaGetDevice(&device));
  flush();
  EQUAL(recorded_calls(), 1u);
  EQUAL(client().dropped, 1u);
}

TEST(records_of_many_threads_are_all_there) {
  register_client();
  client().size = 1024;
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL));
  constexpr int threads = 4, launches = 200;
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([] {
      const auto stream = new_stream();
      for (int k = 0; k < launches; ++k) launch(stream, "kernel", [] {});
      OK(cudaStreamSynchronize(stream));
    });
  }
  for (auto& thread : all) thread.join();
  flush();
  const auto kernels = records<KernelRecord>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  EQUAL(kernels.size(), std::size_t{threads * launches});
  EQUAL(recorded_calls(), std::size_t{threads * (launches + 2)});
  EQUAL(client().dropped, 0u);
  std::map<std::uint32_t, int> launched;
  for (const auto& call : records<CallRecord>(CUPTI_ACTIVITY_KIND_RUNTIME)) {
    if (call.cbid == CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000) ++launched[call.correlationId];
  }
  for (const auto& kernel : kernels) EQUAL(launched[kernel.correlationId], 1);
}

TEST(a_flush_needs_callbacks) {
  EQUAL(cuptiActivityFlushAll(0), CUPTI_ERROR_INVALID_OPERATION);
  EQUAL(cuptiActivityRegisterCallbacks(nullptr, nullptr), CUPTI_ERROR_INVALID_PARAMETER);
}

TEST(what_is_no_record_ends_the_reading) {
  alignas(8) std::uint8_t nothing[64] = {};
  CUpti_Activity* record = nullptr;
  EQUAL(cuptiActivityGetNextRecord(nothing, sizeof nothing, &record), CUPTI_ERROR_INVALID_KIND);
  EQUAL(cuptiActivityGetNextRecord(nothing, 0, &record), CUPTI_ERROR_MAX_LIMIT_REACHED);
  EQUAL(cuptiActivityGetNextRecord(nullptr, 0, &record), CUPTI_ERROR_INVALID_PARAMETER);
}

TEST(the_clock_can_be_the_programs) {
  register_client();
  OK(cuptiActivityRegisterTimestampCallback([]() -> std::uint64_t {
    static std::atomic<std::uint64_t> ticks{100};
    return ++ticks;
  }));
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  int device = 0;
  OK(cudaGetDevice(&device));
  flush();
  const auto call = records<CallRecord>(CUPTI_ACTIVITY_KIND_RUNTIME)[0];
  std::uint64_t now = 0;
  OK(cuptiGetTimestamp(&now));
  CHECK(100 < call.start && call.start < call.end && call.end < now && now < 200);
}

TEST(time_spent_on_a_request_is_overhead) {
  register_client();
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_OVERHEAD));
  int device = 0;
  OK(cudaGetDevice(&device));
  OK(cudaGetDevice(&device));
  flush();
  const auto overheads = records<OverheadRecord>(CUPTI_ACTIVITY_KIND_OVERHEAD);
  EQUAL(overheads.size(), 1u);
  EQUAL(overheads[0].overheadKind, CUPTI_ACTIVITY_OVERHEAD_ACTIVITY_BUFFER_REQUEST);
  CHECK(overheads[0].start != 0 && overheads[0].start <= overheads[0].end);
  EQUAL(overheads[0].correlationId, records<CallRecord>(CUPTI_ACTIVITY_KIND_RUNTIME)[0].correlationId);
}

TEST(a_subscriber_is_called_at_begin_and_end_of_calls) {
  register_client();
  const auto handle = subscribed();
  CUpti_SubscriberHandle second = nullptr;
  EQUAL(cuptiSubscribe(&second, called_back, nullptr), CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  OK(cuptiEnableCallback(1, handle, CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020));
  std::uint32_t enabled = 0;
  OK(cuptiGetCallbackState(&enabled, handle, CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020));
  EQUAL(enabled, 1u);
  OK(cudaSetDevice(0));
  CHECK(cudaMalloc(nullptr, 1) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);  // the subscriber's calls do not change the last error
  OK(cuptiEnableCallback(0, handle, CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020));
  device_memory(16);
  EQUAL(callbacks.size(), 2u);
  EQUAL(callbacks[0].site, CUPTI_API_ENTER);
  EQUAL(callbacks[1].site, CUPTI_API_EXIT);
  EQUAL(callbacks[1].result, int{cudaErrorInvalidValue});
  CHECK(callbacks[0].data != nullptr && callbacks[0].data == callbacks[1].data);
  for (const auto& one : callbacks) {
    EQUAL(one.name, "cudaMalloc");
    EQUAL(one.domain, CUPTI_CB_DOMAIN_RUNTIME_API);
    EQUAL(one.correlation, callbacks[0].correlation);
  }
  flush();
  EQUAL(records<CallRecord>(CUPTI_ACTIVITY_KIND_RUNTIME)[1].correlationId, callbacks[0].correlation);
  OK(cuptiEnableDomain(1, handle, CUPTI_CB_DOMAIN_DRIVER_API));
  OK(cuCtxSynchronize());
  EQUAL(callbacks.size(), 4u);
  EQUAL(callbacks[3].name, "cuCtxSynchronize");
  OK(cuptiUnsubscribe(handle));
  OK(cuCtxSynchronize());
  EQUAL(callbacks.size(), 4u);
  EQUAL(cuptiUnsubscribe(handle), CUPTI_ERROR_INVALID_PARAMETER);
  OK(cuptiSubscribe(&second, called_back, nullptr));
}

TEST(a_subscriber_learns_of_contexts) {
  const auto handle = subscribed();
  OK(cuptiEnableCallback(1, handle, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED));
  device_memory(16);
  device_memory(16);
  OK(cudaSetDevice(1));
  device_memory(16);
  EQUAL(contexts.size(), 2u);
  CUcontext current = nullptr;
  OK(cuCtxGetCurrent(&current));
  EQUAL(contexts[1], current);
  CHECK(contexts[0] != nullptr && contexts[0] != contexts[1]);
  CHECK(callbacks.empty());
}

TEST(cupti_can_be_detached_in_a_callback_and_used_again) {
  register_client();
  const auto handle = subscribed();
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  OK(cuptiEnableDomain(1, handle, CUPTI_CB_DOMAIN_RUNTIME_API));
  finalize = true;
  OK(cudaSetDevice(0));
  EQUAL(recorded_calls(), 1u);  // the record from before cuptiFinalize has been returned
  OK(cudaSetDevice(0));
  EQUAL(callbacks.size(), 2u);
  EQUAL(cuptiActivityFlushAll(0), CUPTI_ERROR_INVALID_OPERATION);
  finalize = false;
  register_client();
  OK(cuptiActivityEnable(CUPTI_ACTIVITY_KIND_RUNTIME));
  OK(cudaSetDevice(0));
  flush();
  EQUAL(recorded_calls(), 2u);
}

TEST(attributes_keep_their_values) {
  std::size_t value = 0, size = sizeof value;
  OK(cuptiActivityGetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, &size, &value));
  EQUAL(value, 250u);
  value = 10;
  OK(cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, &size, &value));
  value = 0;
  OK(cuptiActivityGetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, &size, &value));
  EQUAL(value, 10u);
  size = 1;
  EQUAL(cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, &size, &value),
        CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT);
  EQUAL(cuptiActivityGetAttribute(static_cast<CUpti_ActivityAttribute>(99), &size, &value),
        CUPTI_ERROR_INVALID_PARAMETER);
}

TEST(results_have_their_names) {
  const char* text = nullptr;
  OK(cuptiGetResultString(CUPTI_ERROR_INVALID_KIND, &text));
  EQUAL(std::string(text), "CUPTI_ERROR_INVALID_KIND");
  EQUAL(cuptiGetResultString(static_cast<CUptiResult>(500), &text), CUPTI_ERROR_INVALID_PARAMETER);
}

}  // namespace simcuda::cupti::testing
