// Events: states, times, errors, and other processes.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "check.h"

namespace simcuda::testing {

TEST(an_event_is_done_when_all_before_it_is) {
  const cudaStream_t stream = new_stream();
  const cudaEvent_t event = new_event();
  OK(cudaEventQuery(event));  // never recorded
  OK(cudaEventSynchronize(event));
  Gate gate;
  OK(launch(stream, gate.work()));
  OK(cudaEventRecord(event, stream));
  GIVES(cudaErrorNotReady, cudaEventQuery(event));
  gate.open();
  OK(cudaEventSynchronize(event));
  OK(cudaEventQuery(event));
}

TEST(a_stream_waits_for_what_was_recorded_when_it_was_asked_to) {
  const cudaStream_t writer = new_stream(), reader = new_stream();
  const cudaEvent_t event = new_event(cudaEventDisableTiming);
  Gate first, second;
  std::atomic<bool> ran{false};
  OK(launch(writer, first.work()));
  OK(cudaEventRecord(event, writer));
  OK(cudaStreamWaitEvent(reader, event, 0));
  OK(launch(reader, [&ran] { ran = true; }));
  OK(launch(writer, second.work()));
  OK(cudaEventRecord(event, writer));  // the reader does not wait for this record
  CHECK(!ran);
  first.open();
  OK(cudaStreamSynchronize(reader));
  CHECK(ran);
  GIVES(cudaErrorNotReady, cudaEventQuery(event));
}

TEST(an_event_that_is_destroyed_is_still_waited_for) {
  const cudaStream_t writer = new_stream(), reader = new_stream();
  const cudaEvent_t event = new_event();
  Gate gate;
  std::atomic<bool> ran{false};
  OK(launch(writer, gate.work()));
  OK(cudaEventRecord(event, writer));
  OK(cudaStreamWaitEvent(reader, event, 0));
  OK(cudaEventDestroy(event));
  GIVES(cudaErrorInvalidResourceHandle, cudaEventQuery(event));
  GIVES(cudaErrorInvalidResourceHandle, cudaEventDestroy(event));
  OK(launch(reader, [&ran] { ran = true; }));
  CHECK(!ran);
  gate.open();
  OK(cudaStreamSynchronize(reader));
  CHECK(ran);
}

TEST(times_are_told_of_events_that_are_done_and_have_them) {
  const cudaStream_t stream = new_stream();
  const cudaEvent_t first = new_event(), last = new_event(), without = new_event(cudaEventDisableTiming);
  float milliseconds = -1;
  GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, first, last));
  Gate gate;
  OK(cudaEventRecord(first, stream));
  OK(launch(stream, gate.work()));
  OK(cudaEventRecord(last, stream));
  OK(cudaEventRecord(without, stream));
  GIVES(cudaErrorNotReady, cudaEventElapsedTime(&milliseconds, first, last));
  GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, first, without));
  gate.await();
  usleep(3000);
  gate.open();
  OK(cudaStreamSynchronize(stream));
  OK(cudaEventElapsedTime(&milliseconds, first, last));
  CHECK(milliseconds >= 3);
  float backwards = 0;
  OK(cudaEventElapsedTime(&backwards, last, first));
  EQUAL(backwards, -milliseconds);
}

TEST(events_belong_to_a_device) {
  const cudaEvent_t event = new_event();
  OK(cudaSetDevice(1));
  const cudaStream_t stream = new_stream();
  const cudaEvent_t other = new_event();
  GIVES(cudaErrorInvalidResourceHandle, cudaEventRecord(event, stream));
  OK(cudaEventRecord(other, stream));
  OK(cudaSetDevice(0));
  OK(cudaEventRecord(event, new_stream()));
  float milliseconds = 0;
  OK(cudaStreamWaitEvent(new_stream(), other, 0));
  OK(cudaEventSynchronize(other));
  OK(cudaEventSynchronize(event));
  GIVES(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&milliseconds, event, other));
}

TEST(flags_of_events_are_checked) {
  cudaEvent_t event = nullptr;
  GIVES(cudaErrorInvalidValue, cudaEventCreateWithFlags(&event, 0x80));
  GIVES(cudaErrorInvalidValue, cudaEventCreateWithFlags(&event, cudaEventInterprocess));
  GIVES(cudaErrorInvalidValue, cudaEventCreate(nullptr));
  event = new_event(cudaEventBlockingSync | cudaEventDisableTiming);
  GIVES(cudaErrorInvalidValue, cudaEventRecordWithFlags(event, new_stream(), 2));
  GIVES(cudaErrorInvalidValue, cudaStreamWaitEvent(new_stream(), event, 2));
  OK(cudaEventRecordWithFlags(event, new_stream(), cudaEventRecordExternal));
  cudaIpcEventHandle_t handle;
  GIVES(cudaErrorInvalidResourceHandle, cudaIpcGetEventHandle(&handle, event));
}

TEST(another_process_waits_for_an_event) {
  int there[2], back[2];
  CHECK(pipe(there) == 0 && pipe(back) == 0);
  const pid_t child = fork();  // CUDA is not yet initialised
  if (child == 0) {
    cudaIpcEventHandle_t handle;
    cudaEvent_t event = nullptr;
    cudaStream_t stream = nullptr;
    char ready = 'x';
    bool good = read(there[0], &handle, sizeof handle) == sizeof handle;
    good = good && cudaIpcOpenEventHandle(&event, handle) == cudaSuccess && cudaStreamCreate(&stream) == cudaSuccess;
    good = good && cudaEventQuery(event) == cudaErrorNotReady;
    good = good && cudaStreamWaitEvent(stream, event, 0) == cudaSuccess && cudaStreamQuery(stream) == cudaErrorNotReady;
    usleep(20000);
    good = good && cudaStreamQuery(stream) == cudaErrorNotReady;
    good = good && write(back[1], &ready, 1) == 1;
    good = good && cudaStreamSynchronize(stream) == cudaSuccess && cudaEventQuery(event) == cudaSuccess;
    good = good && cudaEventSynchronize(event) == cudaSuccess && cudaEventDestroy(event) == cudaSuccess;
    _exit(good ? 0 : 1);
  }
  const cudaEvent_t event = new_event(cudaEventInterprocess | cudaEventDisableTiming);
  const cudaStream_t stream = new_stream();
  Gate gate;
  OK(launch(stream, gate.work()));
  OK(cudaEventRecord(event, stream));
  cudaIpcEventHandle_t handle;
  OK(cudaIpcGetEventHandle(&handle, event));
  CHECK(write(there[1], &handle, sizeof handle) == sizeof handle);
  close(back[1]);
  char ready = 0;
  CHECK(read(back[0], &ready, 1) == 1);
  gate.open();
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  EQUAL(status, 0);
  OK(cudaEventSynchronize(event));
}

}  // namespace simcuda::testing
