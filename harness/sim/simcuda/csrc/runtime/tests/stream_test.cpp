// Streams: order, waiting, the default streams, host functions.

#include <atomic>
#include <set>
#include <thread>

#include "check.h"

namespace simcuda::testing {

TEST(launched_work_runs_in_order_and_later) {
  const cudaStream_t stream = new_stream();
  Gate gate;
  OK(launch(stream, gate.work()));
  std::vector<int> ran;
  for (int i = 0; i < 100; ++i) OK(launch(stream, [&ran, i] { ran.push_back(i); }));
  GIVES(cudaErrorNotReady, cudaStreamQuery(stream));
  gate.open();
  OK(cudaStreamSynchronize(stream));
  OK(cudaStreamQuery(stream));
  EQUAL(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EQUAL(ran[static_cast<std::size_t>(i)], i);
}

TEST(streams_do_not_wait_for_each_other) {
  const cudaStream_t first = new_stream(), second = new_stream();
  Gate gate;
  OK(launch(first, gate.work()));
  OK(launch(second, [] {}));
  OK(cudaStreamSynchronize(second));
  GIVES(cudaErrorNotReady, cudaStreamQuery(first));
}

TEST(the_legacy_stream_waits_for_blocking_streams) {
  const cudaStream_t blocking = new_stream(cudaStreamDefault);
  Gate gate;
  OK(launch(blocking, gate.work()));
  std::atomic<bool> ran{false};
  OK(launch(nullptr, [&ran] { ran = true; }));
  const cudaStream_t other = new_stream();
  OK(launch(other, [] {}));
  OK(cudaStreamSynchronize(other));
  CHECK(!ran);
  GIVES(cudaErrorNotReady, cudaStreamQuery(nullptr));
  gate.open();
  OK(cudaStreamSynchronize(nullptr));
  CHECK(ran);
}

TEST(blocking_streams_wait_for_the_legacy_stream) {
  const cudaStream_t blocking = new_stream(cudaStreamDefault), other = new_stream(cudaStreamNonBlocking);
  Gate gate;
  OK(launch(cudaStreamLegacy, gate.work()));
  std::atomic<bool> ran{false};
  OK(launch(blocking, [&ran] { ran = true; }));
  OK(launch(other, [] {}));
  OK(cudaStreamSynchronize(other));
  CHECK(!ran);
  gate.open();
  OK(cudaStreamSynchronize(blocking));
  CHECK(ran);
}

TEST(an_event_of_a_blocking_stream_is_behind_the_legacy_stream) {
  const cudaStream_t blocking = new_stream(cudaStreamDefault);
  const cudaEvent_t event = new_event();
  Gate gate;
  OK(launch(nullptr, gate.work()));
  OK(cudaEventRecord(event, blocking));
  GIVES(cudaErrorNotReady, cudaEventQuery(event));
  gate.open();
  OK(cudaEventSynchronize(event));
}

TEST(the_legacy_stream_waits_for_a_blocking_stream_that_was_destroyed) {
  const cudaStream_t blocking = new_stream(cudaStreamDefault);
  Gate gate;
  std::atomic<bool> first{false}, second{false};
  OK(launch(blocking, gate.work()));
  OK(launch(blocking, [&first] { first = true; }));
  OK(cudaStreamDestroy(blocking));
  OK(launch(nullptr, [&] { second = first.load(); }));
  gate.open();
  OK(cudaStreamSynchronize(nullptr));
  CHECK(second);
}

TEST(default_streams_of_threads_differ) {
  unsigned long long here = 0, there = 0, again = 0;
  OK(cudaStreamGetId(cudaStreamPerThread, &here));
  std::thread([&] { cudaStreamGetId(cudaStreamPerThread, &there); }).join();
  OK(cudaStreamGetId(cudaStreamPerThread, &again));
  CHECK(here != there);
  EQUAL(here, again);
  Gate gate;
  OK(launch(cudaStreamPerThread, gate.work()));
  std::thread([&] { OK(cudaStreamSynchronize(cudaStreamPerThread)); }).join();
  GIVES(cudaErrorNotReady, cudaStreamQuery(cudaStreamPerThread));
  GIVES(cudaErrorNotReady, cudaStreamQuery(cudaStreamLegacy));
}

TEST(streams_tell_what_they_are) {
  int least = 1, greatest = 1, priority = 1, device = 1;
  unsigned flags = 0;
  OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  EQUAL(least, 0);
  EQUAL(greatest, -5);
  const cudaStream_t stream = new_stream(cudaStreamNonBlocking, -9);
  OK(cudaStreamGetPriority(stream, &priority));
  EQUAL(priority, -5);
  OK(cudaStreamGetFlags(stream, &flags));
  EQUAL(flags, unsigned{cudaStreamNonBlocking});
  OK(cudaStreamGetDevice(stream, &device));
  EQUAL(device, 0);
  OK(cudaSetDevice(1));
  OK(cudaStreamGetDevice(stream, &device));
  EQUAL(device, 0);
  OK(cudaStreamGetDevice(nullptr, &device));
  EQUAL(device, 1);
  std::set<unsigned long long> ids;
  for (const cudaStream_t one : {stream, new_stream(), cudaStream_t{nullptr}, cudaStreamPerThread}) {
    unsigned long long id = 0;
    OK(cudaStreamGetId(one, &id));
    ids.insert(id);
  }
  EQUAL(ids.size(), 4u);
  cudaStream_t none = nullptr;
  GIVES(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&none, 7));
}

TEST(a_stream_that_was_destroyed_is_no_stream_and_its_work_goes_on) {
  const cudaStream_t stream = new_stream();
  Gate gate;
  std::atomic<bool> ran{false};
  OK(launch(stream, gate.work()));
  OK(launch(stream, [&ran] { ran = true; }));
  OK(cudaStreamDestroy(stream));
  GIVES(cudaErrorInvalidResourceHandle, cudaStreamQuery(stream));
  GIVES(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stream));
  GIVES(cudaErrorInvalidResourceHandle, cudaStreamDestroy(nullptr));
  CHECK(!ran);
  gate.open();
  OK(cudaDeviceSynchronize());
  CHECK(ran);
}

TEST(many_streams_need_no_more_threads) {
  std::vector<cudaStream_t> streams;
  Gate gate;
  const cudaStream_t first = new_stream();
  const cudaEvent_t event = new_event();
  OK(launch(first, gate.work()));
  OK(cudaEventRecord(event, first));
  std::atomic<int> ran{0};
  for (int i = 0; i < 200; ++i) {
    streams.push_back(new_stream());
    OK(cudaStreamWaitEvent(streams.back(), event, 0));
    OK(launch(streams.back(), [&ran] { ++ran; }));
  }
  const cudaStream_t last = new_stream();
  OK(launch(last, [] {}));
  OK(cudaStreamSynchronize(last));
  EQUAL(ran.load(), 0);
  gate.open();
  OK(cudaDeviceSynchronize());
  EQUAL(ran.load(), 200);
  EQUAL(simcudaThreadCount(), 16);
}

TEST(host_functions_run_in_order_and_may_not_call_cuda) {
  struct Seen {
    std::vector<int> order;
    cudaError_t error = cudaSuccess, harmless = cudaErrorUnknown;
  } seen;
  const cudaStream_t stream = new_stream();
  OK(launch(stream, [&] { seen.order.push_back(1); }));
  OK(cudaLaunchHostFunc(
      stream,
      [](void* data) {
        auto& seen = *static_cast<Seen*>(data);
        seen.order.push_back(2);
        void* memory = nullptr;
        seen.error = cudaMalloc(&memory, 16);
        int version = 0;
        seen.harmless = cudaRuntimeGetVersion(&version);
      },
      &seen));
  OK(cudaStreamAddCallback(
      stream,
      [](cudaStream_t, cudaError_t status, void* data) {
        if (status == cudaSuccess) static_cast<Seen*>(data)->order.push_back(3);
      },
      &seen, 0));
  OK(launch(stream, [&] { seen.order.push_back(4); }));
  OK(cudaStreamSynchronize(stream));
  CHECK((seen.order == std::vector<int>{1, 2, 3, 4}));
  EQUAL(seen.error, cudaErrorNotPermitted);
  EQUAL(seen.harmless, cudaSuccess);
  GIVES(cudaErrorInvalidValue, cudaLaunchHostFunc(stream, nullptr, nullptr));
}

TEST(work_runs_with_its_device_as_the_current_one) {
  OK(cudaSetDevice(1));
  const cudaStream_t stream = new_stream();
  OK(cudaSetDevice(0));
  int device = -1;
  OK(launch(stream, [&device] { cudaGetDevice(&device); }));
  OK(cudaStreamSynchronize(stream));
  EQUAL(device, 1);
}

TEST(attributes_of_streams_are_kept_and_copied) {
  const cudaStream_t stream = new_stream(cudaStreamDefault, -2), other = new_stream();
  cudaStreamAttrValue value{};
  value.syncPolicy = cudaSyncPolicyYield;
  OK(cudaStreamSetAttribute(stream, cudaLaunchAttributeSynchronizationPolicy, &value));
  OK(cudaStreamCopyAttributes(other, stream));
  value = {};
  OK(cudaStreamGetAttribute(other, cudaLaunchAttributeSynchronizationPolicy, &value));
  EQUAL(value.syncPolicy, cudaSyncPolicyYield);
  OK(cudaStreamGetAttribute(stream, cudaLaunchAttributePriority, &value));
  EQUAL(value.priority, -2);
}

}  // namespace simcuda::testing
