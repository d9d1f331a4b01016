// The contents of the records of calls, kernels, copies, fills, waits and events.

#include <cuda.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>

#include "client.h"

namespace simcuda::cupti::testing {

namespace {

using Kinds = std::vector<CUpti_ActivityKind>;

void enable(const Kinds& kinds) {
  for (const auto kind : kinds) OK(cuptiActivityEnable(kind));
}

void record(const Kinds& kinds) {
  register_client();
  OK(cudaFree(nullptr));  // the initialisation of the device is not recorded
  OK(cudaSetDevice(0));
  enable(kinds);
}

std::vector<CallRecord> calls() { return records<CallRecord>(CUPTI_ACTIVITY_KIND_RUNTIME); }

std::uint32_t stream_id(cudaStream_t stream) {
  std::uint32_t id = 0;
  OK(cuptiGetStreamIdEx(nullptr, stream, 0, &id));
  return id;
}

std::uint64_t time() {
  std::uint64_t time = 0;
  OK(cuptiGetTimestamp(&time));
  return time;
}

}  // namespace

TEST(a_kernel_is_told_with_the_call_that_launched_it) {
  record({CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  const auto before = time();
  const auto stream = new_stream();
  launch(stream, "first", [] {});
  launch(nullptr, "aten::second", [] {});
  OK(cudaDeviceSynchronize());
  const auto after = time();
  flush();

  const auto all = calls();
  std::vector<CallRecord> launches;
  std::copy_if(all.begin(), all.end(), std::back_inserter(launches),
               [](const auto& call) { return call.cbid == CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000; });
  auto kernels = records<KernelRecord>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  EQUAL(launches.size(), 2u);
  EQUAL(kernels.size(), 2u);
  std::sort(kernels.begin(), kernels.end(), [](auto& a, auto& b) { return a.correlationId < b.correlationId; });
  const std::string names[] = {"first", "void simulated_kernel<aten::second>()"};
  const std::uint32_t streams[] = {stream_id(stream), 7};
  for (int i = 0; i < 2; ++i) {
    EQUAL(kernels[i].correlationId, launches[i].correlationId);
    EQUAL(std::string(kernels[i].name), names[i]);
    EQUAL(kernels[i].streamId, streams[i]);
    EQUAL(kernels[i].deviceId, 0u);
    EQUAL(kernels[i].contextId, 1u);
    EQUAL(kernels[i].graphId, 0u);
    EQUAL(kernels[i].graphNodeId, 0u);
    EQUAL(launches[i].processId, static_cast<std::uint32_t>(getpid()));
    EQUAL(launches[i].threadId, static_cast<std::uint32_t>(pthread_self()));
    CHECK(before <= launches[i].start && launches[i].start <= launches[i].end);
    CHECK(launches[i].start <= kernels[i].start && kernels[i].start <= kernels[i].end && kernels[i].end <= after);
  }
}

TEST(the_times_of_work_are_those_when_it_ran) {
  record({CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  const auto stream = new_stream();
  Gate gate;
  launch(stream, "held", gate.work());
  launch(stream, "behind", [] {});
  gate.await();
  flush();
  CHECK(records<KernelRecord>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL).empty());  // no kernel has ended
  const auto opened = time();
  gate.open();
  OK(cudaStreamSynchronize(stream));
  flush();
  const auto kernels = records<KernelRecord>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  EQUAL(kernels.size(), 2u);
  CHECK(kernels[0].start < opened && kernels[0].end >= opened);
  CHECK(kernels[1].start >= kernels[0].end);
  for (const auto& call : calls()) {
    if (call.cbid == CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000) CHECK(call.end < opened);
  }
}

TEST(a_call_that_fails_is_told_with_its_error) {
  record({CUPTI_ACTIVITY_KIND_RUNTIME});
  CHECK(cudaMalloc(nullptr, 1) == cudaErrorInvalidValue);
  flush();
  EQUAL(calls().size(), 1u);
  EQUAL(calls()[0].cbid, CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020);
  EQUAL(calls()[0].returnValue, static_cast<std::uint32_t>(cudaErrorInvalidValue));
  const char* name = nullptr;
  OK(cuptiGetCallbackName(CUPTI_CB_DOMAIN_RUNTIME_API, calls()[0].cbid, &name));
  EQUAL(std::string(name), "cudaMalloc_v3020");
}

TEST(a_call_of_the_driver_is_told_as_such) {
  record({CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_DRIVER, CUPTI_ACTIVITY_KIND_MEMSET});
  auto* const memory = device_memory(64);
  OK(cuMemsetD8(reinterpret_cast<CUdeviceptr>(memory), 3, 64));
  OK(cuCtxSynchronize());
  flush();
  const auto driver = records<CallRecord>(CUPTI_ACTIVITY_KIND_DRIVER);
  EQUAL(driver.size(), 2u);
  EQUAL(driver[0].cbid, CUPTI_DRIVER_TRACE_CBID_cuMemsetD8_v2);
  EQUAL(driver[1].cbid, CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize);
  EQUAL(calls().size(), 1u);  // cudaMalloc alone: calls of the runtime inside the driver's functions are not recorded
  const auto fills = records<FillRecord>(CUPTI_ACTIVITY_KIND_MEMSET);
  EQUAL(fills.size(), 1u);
  EQUAL(fills[0].correlationId, driver[0].correlationId);
  const char* name = nullptr;
  OK(cuptiGetCallbackName(CUPTI_CB_DOMAIN_DRIVER_API, driver[0].cbid, &name));
  EQUAL(std::string(name), "cuMemsetD8_v2");
}

TEST(copies_are_told_with_direction_memory_and_size) {
  register_client();
  auto* const device = device_memory(4096);
  auto* const other = device_memory(4096);
  void* pinned = nullptr;
  void* managed = nullptr;
  OK(cudaMallocHost(&pinned, 4096));
  OK(cudaMallocManaged(&managed, 4096));
  std::vector<char> pageable(4096);
  enable({CUPTI_ACTIVITY_KIND_MEMCPY});
  OK(cudaMemcpy(device, pageable.data(), 1, cudaMemcpyHostToDevice));
  OK(cudaMemcpyAsync(device, pinned, 2, cudaMemcpyHostToDevice, nullptr));
  OK(cudaMemcpyAsync(pageable.data(), device, 3, cudaMemcpyDeviceToHost, nullptr));
  OK(cudaMemcpyAsync(other, device, 4, cudaMemcpyDeviceToDevice, nullptr));
  OK(cudaMemcpyAsync(device, managed, 5, cudaMemcpyDefault, nullptr));
  OK(cudaDeviceSynchronize());
  flush();
  const auto copies = records<CopyRecord>(CUPTI_ACTIVITY_KIND_MEMCPY);
  struct {
    int kind, from, to, flags;
  } const expected[] = {
      {CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 0},
      {CUPTI_ACTIVITY_MEMCPY_KIND_HTOD, CUPTI_ACTIVITY_MEMORY_KIND_PINNED, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 1},
      {CUPTI_ACTIVITY_MEMCPY_KIND_DTOH, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE, 1},
      {CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 1},
      {CUPTI_ACTIVITY_MEMCPY_KIND_DTOD, CUPTI_ACTIVITY_MEMORY_KIND_MANAGED, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 1},
  };
  EQUAL(copies.size(), 5u);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    EQUAL(int{copies[i].copyKind}, expected[i].kind);
    EQUAL(int{copies[i].srcKind}, expected[i].from);
    EQUAL(int{copies[i].dstKind}, expected[i].to);
    EQUAL(int{copies[i].flags}, expected[i].flags);
    EQUAL(copies[i].bytes, i + 1);
  }
  CHECK(records<CallRecord>(CUPTI_ACTIVITY_KIND_RUNTIME).empty());
}

TEST(a_copy_between_devices_has_both) {
  register_client();
  auto* const here = device_memory(256);
  OK(cudaSetDevice(1));
  auto* const there = device_memory(256);
  enable({CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_RUNTIME});
  OK(cudaMemcpyPeerAsync(here, 0, there, 1, 256, nullptr));
  OK(cudaDeviceSynchronize());
  flush();
  CHECK(records<CopyRecord>(CUPTI_ACTIVITY_KIND_MEMCPY).empty());
  const auto copies = records<PeerCopyRecord>(CUPTI_ACTIVITY_KIND_MEMCPY2);
  EQUAL(copies.size(), 1u);
  EQUAL(int{copies[0].copyKind}, int{CUPTI_ACTIVITY_MEMCPY_KIND_PTOP});
  EQUAL(copies[0].bytes, 256u);
  EQUAL(copies[0].deviceId, 1u);
  EQUAL(copies[0].srcDeviceId, 1u);
  EQUAL(copies[0].srcContextId, 2u);
  EQUAL(copies[0].dstDeviceId, 0u);
  EQUAL(copies[0].dstContextId, 1u);
  EQUAL(copies[0].correlationId, calls()[0].correlationId);
}

TEST(a_fill_is_told_with_value_and_size) {
  register_client();
  auto* const memory = device_memory(4096);
  enable({CUPTI_ACTIVITY_KIND_MEMSET});
  OK(cudaMemset(memory, 7, 100));
  OK(cudaMemsetAsync(memory, 0x1ff, 50, nullptr));
  OK(cudaDeviceSynchronize());
  flush();
  const auto fills = records<FillRecord>(CUPTI_ACTIVITY_KIND_MEMSET);
  EQUAL(fills.size(), 2u);
  EQUAL(fills[0].value, 7u);
  EQUAL(fills[0].bytes, 100u);
  EQUAL(fills[0].flags, CUPTI_ACTIVITY_FLAG_NONE);
  EQUAL(fills[0].memoryKind, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE);
  EQUAL(fills[1].value, 0xffu);
  EQUAL(fills[1].flags, CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC);
}

TEST(waits_are_told_with_what_they_wait_for) {
  register_client();
  const auto stream = new_stream();
  cudaEvent_t event = nullptr;
  OK(cudaEventCreate(&event));
  enable({CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION});
  OK(cudaEventRecord(event, stream));
  OK(cudaStreamWaitEvent(nullptr, event, 0));
  OK(cudaEventSynchronize(event));
  OK(cudaStreamSynchronize(stream));
  OK(cudaDeviceSynchronize());
  flush();
  const auto events = records<EventRecord>(CUPTI_ACTIVITY_KIND_CUDA_EVENT);
  EQUAL(events.size(), 1u);
  EQUAL(events[0].streamId, stream_id(stream));
  EQUAL(events[0].contextId, 1u);
  EQUAL(events[0].deviceTimestamp, 0u);
  const auto waits = records<WaitRecord>(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
  constexpr std::uint32_t none = CUPTI_SYNCHRONIZATION_INVALID_VALUE;
  struct {
    CUpti_ActivitySynchronizationType type;
    std::uint32_t stream, event;
  } const expected[] = {
      {CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT, 7, events[0].eventId},
      {CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE, none, events[0].eventId},
      {CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE, stream_id(stream), none},
      {CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE, none, none},
  };
  EQUAL(waits.size(), 4u);
  EQUAL(calls().size(), 5u);
  EQUAL(events[0].correlationId, calls()[0].correlationId);
  for (std::size_t i = 0; i < 4; ++i) {
    EQUAL(waits[i].type, expected[i].type);
    EQUAL(waits[i].streamId, expected[i].stream);
    EQUAL(waits[i].cudaEventId, expected[i].event);
    EQUAL(waits[i].correlationId, calls()[i + 1].correlationId);
    EQUAL(waits[i].contextId, 1u);
    CHECK(waits[i].start <= waits[i].end);
    EQUAL(waits[i].cudaEventSyncId, i < 2 ? events[0].cudaEventSyncId : none);
  }
}

TEST(an_event_has_the_time_when_the_stream_came_to_it) {
  register_client();
  const auto stream = new_stream();
  cudaEvent_t event = nullptr;
  OK(cudaEventCreate(&event));
  OK(cuptiActivityEnableCudaEventDeviceTimestamps(1));
  enable({CUPTI_ACTIVITY_KIND_CUDA_EVENT});
  Gate gate;
  launch(stream, "held", gate.work());
  OK(cudaEventRecord(event, stream));
  OK(cudaEventRecord(event, nullptr));
  gate.await();
  const auto opened = time();
  gate.open();
  OK(cudaDeviceSynchronize());
  flush();
  const auto events = records<EventRecord>(CUPTI_ACTIVITY_KIND_CUDA_EVENT);
  EQUAL(events.size(), 2u);  // the event on the legacy stream came first: the other stream is non-blocking
  EQUAL(events[0].streamId, 7u);
  CHECK(events[0].deviceTimestamp != 0 && events[0].deviceTimestamp < opened);
  CHECK(events[1].deviceTimestamp >= opened);
  EQUAL(events[0].eventId, events[1].eventId);
  CHECK(events[0].cudaEventSyncId > events[1].cudaEventSyncId);
}

TEST(a_query_of_what_is_not_done_may_be_left_out) {
  register_client();
  const auto stream = new_stream();
  enable({CUPTI_ACTIVITY_KIND_SYNCHRONIZATION});
  Gate gate;
  launch(stream, "held", gate.work());
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  OK(cuptiActivityEnableAllSyncRecords(0));
  CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
  gate.open();
  OK(cudaStreamSynchronize(stream));
  OK(cudaStreamQuery(stream));
  flush();
  const auto waits = records<WaitRecord>(CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
  EQUAL(waits.size(), 3u);
  EQUAL(waits[0].returnValue, static_cast<std::uint32_t>(CUDA_ERROR_NOT_READY));
  EQUAL(waits[1].returnValue, 0u);
  EQUAL(waits[2].returnValue, 0u);
}

TEST(ids_of_the_program_come_before_the_calls_that_they_are_of) {
  record({CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION});
  OK(cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, 10));
  OK(cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, 11));
  OK(cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1, 12));
  launch(nullptr, "kernel", [] {});
  std::uint64_t id = 0;
  OK(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &id));
  EQUAL(id, 11u);
  OK(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1, nullptr));
  OK(cudaDeviceSynchronize());
  OK(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &id));
  EQUAL(id, 10u);
  EQUAL(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &id), CUPTI_ERROR_QUEUE_EMPTY);
  EQUAL(cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_INVALID, 1),
        CUPTI_ERROR_INVALID_PARAMETER);
  flush();
  const auto all = kinds();
  const std::vector<CUpti_ActivityKind> expected = {
      CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME,
      CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, CUPTI_ACTIVITY_KIND_RUNTIME};
  CHECK(all == expected);
  const auto ids = records<ExternalRecord>(CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
  const std::uint64_t values[] = {11, 12, 10};
  const std::size_t of[] = {0, 0, 1};
  for (int i = 0; i < 3; ++i) {
    EQUAL(ids[i].externalId, values[i]);
    EQUAL(ids[i].correlationId, calls()[of[i]].correlationId);
  }
}

TEST(work_of_a_graph_has_the_numbers_of_graph_and_node) {
  register_client();
  const auto stream = new_stream();
  auto* const memory = device_memory(64);
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch(stream, "kernel", [] {});
  OK(cudaMemsetAsync(memory, 1, 64, stream));
  OK(cudaMemcpyAsync(memory, memory + 32, 32, cudaMemcpyDeviceToDevice, stream));
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  cudaGraphNode_t nodes[3];
  std::size_t count = 3;
  OK(cudaGraphGetNodes(graph, nodes, &count));
  enable({CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
          CUPTI_ACTIVITY_KIND_MEMSET});
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  flush();
  const auto launches = calls();
  EQUAL(launches[0].cbid, CUPTI_RUNTIME_TRACE_CBID_cudaGraphLaunch_v10000);
  std::uint32_t captured = 0, launched = 0;
  OK(cuptiGetGraphId(graph, &captured));
  OK(cuptiGetGraphExecId(exec, &launched));
  CHECK(captured != launched);
  const auto kernels = records<KernelRecord>(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  const auto fills = records<FillRecord>(CUPTI_ACTIVITY_KIND_MEMSET);
  const auto copies = records<CopyRecord>(CUPTI_ACTIVITY_KIND_MEMCPY);
  EQUAL(kernels.size(), 1u);
  EQUAL(fills.size(), 1u);
  EQUAL(copies.size(), 1u);
  const auto check = [&](const auto& work, cudaGraphNode_t node) {
    std::uint64_t id = 0;
    OK(cuptiGetGraphNodeId(node, &id));
    EQUAL(id >> 32, captured);
    EQUAL(work.graphId, launched);
    EQUAL(work.graphNodeId, (std::uint64_t{launched} << 32) | (id & 0xffffffff));
    EQUAL(work.correlationId, launches[0].correlationId);
    EQUAL(work.streamId, stream_id(stream));
  };
  check(kernels[0], nodes[0]);
  check(fills[0], nodes[1]);
  check(copies[0], nodes[2]);
}

}  // namespace simcuda::cupti::testing
