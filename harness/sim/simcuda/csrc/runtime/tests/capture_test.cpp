// Captures: the nodes they create, streams that join, and refused calls.

#include <atomic>
#include <thread>

#include "check.h"

namespace simcuda::testing {

namespace {

cudaStreamCaptureStatus status_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  OK(cudaStreamIsCapturing(stream, &status));
  return status;
}

std::size_t count_of(cudaGraph_t graph) {
  std::size_t count = 0;
  OK(cudaGraphGetNodes(graph, nullptr, &count));
  return count;
}

void begin(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
  OK(cudaStreamBeginCapture(stream, mode));
}

cudaError_t end(cudaStream_t stream) {
  cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(1);
  const cudaError_t error = cudaStreamEndCapture(stream, &graph);
  CHECK((error == cudaSuccess) == (graph != nullptr));
  return error;
}

// After a failed capture, the stream can be used again and runs work.
void check_free(cudaStream_t stream) {
  EQUAL(status_of(stream), cudaStreamCaptureStatusNone);
  std::atomic<bool> ran{false};
  OK(launch(stream, [&ran] { ran = true; }));
  OK(cudaStreamSynchronize(stream));
  CHECK(ran);
}

template <typename Body>
void in_a_thread(Body body) {
  std::exception_ptr error;
  std::thread([&] {
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

}  // namespace

TEST(captured_work_runs_when_the_graph_is_launched) {
  const cudaStream_t stream = new_stream();
  int ran = 0;
  const cudaGraph_t graph = captured(stream, [&] {
    EQUAL(status_of(stream), cudaStreamCaptureStatusActive);
    EQUAL(simcudaIsCapturing(stream), 1);
    for (int i = 0; i < 3; ++i) OK(launch(stream, [&ran] { ++ran; }));
  });
  EQUAL(count_of(graph), 3u);
  check_free(stream);
  EQUAL(ran, 0);
  const cudaGraphExec_t exec = instantiated(graph);
  OK(cudaGraphDestroy(graph));
  for (int i = 0; i < 4; ++i) OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  EQUAL(ran, 12);
}

TEST(streams_join_by_events_and_must_come_back) {
  const cudaStream_t first = new_stream(), second = new_stream();
  const cudaEvent_t fork = new_event(), join = new_event();
  const cudaGraph_t graph = captured(first, [&] {
    OK(launch(first, [] {}));
    OK(cudaEventRecord(fork, first));
    OK(cudaStreamWaitEvent(second, fork, 0));
    EQUAL(status_of(second), cudaStreamCaptureStatusActive);
    OK(launch(second, [] {}));
    OK(launch(first, [] {}));
    OK(cudaEventRecord(join, second));
    OK(cudaStreamWaitEvent(first, join, 0));
    OK(launch(first, [] {}));
  });
  check_free(second);
  EQUAL(count_of(graph), 4u);
  std::size_t edges = 0;
  OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EQUAL(edges, 4u);

  begin(first);
  OK(cudaEventRecord(fork, first));
  OK(cudaStreamWaitEvent(second, fork, 0));
  OK(launch(second, [] {}));
  GIVES(cudaErrorStreamCaptureUnjoined, end(first));
  check_free(first);
  check_free(second);
}

TEST(a_capture_ends_where_it_began) {
  const cudaStream_t first = new_stream(), second = new_stream();
  const cudaEvent_t fork = new_event();
  GIVES(cudaErrorIllegalState, end(first));
  begin(first);
  GIVES(cudaErrorIllegalState, cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal));
  OK(cudaEventRecord(fork, first));
  OK(cudaStreamWaitEvent(second, fork, 0));
  GIVES(cudaErrorStreamCaptureUnmatched, end(second));
  GIVES(cudaErrorStreamCaptureInvalidated, end(first));
  check_free(first);
  check_free(second);
}

TEST(another_thread_ends_a_relaxed_capture_only) {
  const cudaStream_t stream = new_stream();
  for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
    begin(stream, mode);
    in_a_thread([&] { GIVES(cudaErrorStreamCaptureWrongThread, end(stream)); });
    OK(end(stream));
  }
  begin(stream, cudaStreamCaptureModeRelaxed);
  in_a_thread([&] { OK(end(stream)); });
}

TEST(waiting_for_a_captured_stream_is_refused) {
  const cudaStream_t stream = new_stream();
  const auto refused = [&](auto call) {
    begin(stream, cudaStreamCaptureModeRelaxed);
    GIVES(cudaErrorStreamCaptureUnsupported, call());
    EQUAL(status_of(stream), cudaStreamCaptureStatusInvalidated);
    GIVES(cudaErrorStreamCaptureInvalidated, launch(stream, [] {}));
    GIVES(cudaErrorStreamCaptureInvalidated, end(stream));
    check_free(stream);
  };
  refused([&] { return cudaStreamSynchronize(stream); });
  refused([&] { return cudaStreamQuery(stream); });
  refused([&] { return cudaDeviceSynchronize(); });
  refused([&] { return cudaStreamAddCallback(stream, [](cudaStream_t, cudaError_t, void*) {}, nullptr, 0); });
}

TEST(asking_for_a_captured_event_is_refused) {
  const cudaStream_t stream = new_stream();
  const cudaEvent_t event = new_event();
  begin(stream, cudaStreamCaptureModeRelaxed);
  OK(cudaEventRecord(event, stream));
  GIVES(cudaErrorCapturedEvent, cudaEventQuery(event));
  GIVES(cudaErrorStreamCaptureInvalidated, end(stream));
  GIVES(cudaErrorCapturedEvent, cudaEventSynchronize(event));
  GIVES(cudaErrorCapturedEvent, cudaStreamWaitEvent(stream, event, 0));
  OK(cudaEventRecord(event, stream));
  OK(cudaEventSynchronize(event));
}

TEST(unsafe_calls_are_refused_as_the_modes_say) {
  const cudaStream_t stream = new_stream();
  const cudaEvent_t event = new_event();
  struct Case {
    cudaStreamCaptureMode capture, thread;
    bool other_thread, refused;
  };
  const auto global = cudaStreamCaptureModeGlobal, local = cudaStreamCaptureModeThreadLocal,
             relaxed = cudaStreamCaptureModeRelaxed;
  const Case cases[] = {
      {global, global, false, true},   {global, local, false, true},   {global, relaxed, false, false},
      {local, global, false, true},    {local, local, false, true},    {local, relaxed, false, false},
      {relaxed, global, false, false}, {relaxed, local, false, false}, {relaxed, relaxed, false, false},
      {global, global, true, true},    {global, local, true, false},   {global, relaxed, true, false},
      {local, global, true, false},    {local, local, true, false},    {relaxed, global, true, false},
  };
  for (const Case& one : cases) {
    begin(stream, one.capture);
    const auto ask = [&] {
      cudaStreamCaptureMode mode = one.thread;
      OK(cudaThreadExchangeStreamCaptureMode(&mode));
      EQUAL(mode, cudaStreamCaptureModeGlobal);
      GIVES(one.refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess, cudaEventQuery(event));
      OK(cudaThreadExchangeStreamCaptureMode(&mode));
      EQUAL(mode, one.thread);
    };
    if (one.other_thread) {
      in_a_thread(ask);
    } else {
      ask();
    }
    GIVES(one.refused ? cudaErrorStreamCaptureInvalidated : cudaSuccess, end(stream));
  }
}

TEST(memory_cannot_be_made_in_a_capture) {
  const cudaStream_t stream = new_stream();
  begin(stream);
  void* memory = nullptr;
  GIVES(cudaErrorStreamCaptureUnsupported, cudaMalloc(&memory, 16));
  GIVES(cudaErrorStreamCaptureInvalidated, end(stream));
}

TEST(other_streams_work_during_a_capture) {
  const cudaStream_t stream = new_stream(), other = new_stream();
  begin(stream);
  std::atomic<bool> ran{false};
  OK(launch(other, [&ran] { ran = true; }));
  OK(launch(nullptr, [] {}));
  OK(cudaStreamSynchronize(other));
  CHECK(ran);
  OK(end(stream));
}

TEST(work_that_was_not_captured_is_not_waited_for) {
  const cudaStream_t stream = new_stream(), other = new_stream();
  const cudaEvent_t event = new_event();
  OK(cudaEventRecord(event, other));
  begin(stream);
  GIVES(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(stream, event, 0));
  GIVES(cudaErrorStreamCaptureInvalidated, end(stream));
}

TEST(captures_do_not_merge) {
  const cudaStream_t first = new_stream(), second = new_stream();
  const cudaEvent_t event = new_event();
  begin(first);
  begin(second);
  OK(cudaEventRecord(event, first));
  GIVES(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(second, event, 0));
  GIVES(cudaErrorStreamCaptureInvalidated, end(first));
  GIVES(cudaErrorStreamCaptureInvalidated, end(second));
}

TEST(the_legacy_stream_is_not_captured) {
  const cudaStream_t blocking = new_stream(cudaStreamDefault), stream = new_stream();
  const cudaEvent_t event = new_event();
  GIVES(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal));
  begin(blocking);
  GIVES(cudaErrorStreamCaptureImplicit, launch(nullptr, [] {}));
  GIVES(cudaErrorStreamCaptureInvalidated, end(blocking));
  begin(blocking, cudaStreamCaptureModeRelaxed);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  GIVES(cudaErrorStreamCaptureImplicit, cudaStreamIsCapturing(nullptr, &status));
  OK(end(blocking));
  begin(stream);
  OK(cudaEventRecord(event, stream));
  GIVES(cudaErrorStreamCaptureImplicit, cudaStreamWaitEvent(nullptr, event, 0));
  GIVES(cudaErrorStreamCaptureInvalidated, end(stream));
  const cudaStream_t own = cudaStreamPerThread;
  begin(own);
  OK(launch(own, [] {}));
  OK(end(own));
}

TEST(dependencies_of_a_capture_can_be_looked_at_and_set) {
  const cudaStream_t stream = new_stream();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t inside = nullptr;
  const cudaGraphNode_t* needs = nullptr;
  std::size_t count = 99;
  OK(cudaStreamGetCaptureInfo(stream, &status, &id, &inside, &needs, nullptr, &count));
  EQUAL(status, cudaStreamCaptureStatusNone);
  GIVES(cudaErrorIllegalState, cudaStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0, 0));
  const cudaGraph_t graph = captured(stream, [&] {
    OK(launch(stream, [] {}));
    OK(cudaStreamGetCaptureInfo(stream, &status, &id, &inside, &needs, nullptr, &count));
    EQUAL(status, cudaStreamCaptureStatusActive);
    EQUAL(count, 1u);
    CHECK(id > 0);
    const cudaGraphNode_t first = needs[0];
    cudaGraphNode_t empty = nullptr;
    OK(cudaGraphAddEmptyNode(&empty, inside, &first, 1));
    OK(cudaStreamUpdateCaptureDependencies(stream, &empty, nullptr, 1, cudaStreamAddCaptureDependencies));
    OK(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &needs, nullptr, &count));
    EQUAL(count, 2u);
    OK(cudaStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0, cudaStreamSetCaptureDependencies));
    OK(launch(stream, [] {}));
  });
  CHECK(graph == inside);
  std::size_t roots = 0;
  OK(cudaGraphGetRootNodes(graph, nullptr, &roots));
  EQUAL(roots, 2u);
}

TEST(a_capture_goes_to_a_graph_that_is_there) {
  const cudaStream_t stream = new_stream();
  cudaGraph_t graph = nullptr, ended = nullptr;
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
  OK(cudaStreamBeginCaptureToGraph(stream, graph, &node, nullptr, 1, cudaStreamCaptureModeGlobal));
  OK(launch(stream, [] {}));
  OK(cudaStreamEndCapture(stream, &ended));
  CHECK(ended == graph);
  OK(cudaStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, cudaStreamCaptureModeGlobal));
  OK(cudaStreamEndCapture(stream, nullptr));
  std::size_t edges = 0;
  OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  EQUAL(edges, 1u);
  OK(cudaGraphDestroy(graph));
}

TEST(a_stream_that_is_destroyed_spoils_its_capture) {
  const cudaStream_t first = new_stream(), second = new_stream();
  const cudaEvent_t fork = new_event();
  begin(first);
  OK(cudaEventRecord(fork, first));
  OK(cudaStreamWaitEvent(second, fork, 0));
  OK(cudaStreamDestroy(second));
  GIVES(cudaErrorStreamCaptureInvalidated, end(first));
  begin(first);
  OK(cudaStreamDestroy(first));
  OK(cudaDeviceSynchronize());
}

TEST(a_capture_can_be_invalidated_by_name) {
  const cudaStream_t stream = new_stream();
  begin(stream);
  simcudaInvalidateCapture(stream, "a test");
  GIVES(cudaErrorStreamCaptureInvalidated, end(stream));
}

}  // namespace simcuda::testing
