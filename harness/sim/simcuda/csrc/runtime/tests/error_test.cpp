// Errors: names and texts, the last error of a thread, sticky errors, devices and the process.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "check.h"

namespace simcuda::testing {

TEST(errors_have_the_names_and_texts_of_cuda) {
  const auto described = [](cudaError_t error) {
    return std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error);
  };
  EQUAL(described(cudaSuccess), "cudaSuccess: no error");
  EQUAL(described(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation: out of memory");
  EQUAL(described(cudaErrorInvalidDevice), "cudaErrorInvalidDevice: invalid device ordinal");
  EQUAL(described(cudaErrorIllegalAddress), "cudaErrorIllegalAddress: an illegal memory access was encountered");
  EQUAL(described(cudaErrorStreamCaptureUnsupported),
        "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing");
  EQUAL(described(static_cast<cudaError_t>(777)), "unrecognized error code: unrecognized error code");
}

TEST(the_last_error_is_the_threads_own_and_taken_once) {
  int value = 0;
  EQUAL(cudaGetDeviceProperties(nullptr, 0), cudaErrorInvalidValue);
  EQUAL(cudaGetDeviceCount(&value), cudaSuccess);  // a success does not reset the last error
  EQUAL(cudaPeekAtLastError(), cudaErrorInvalidValue);
  cudaError_t elsewhere = cudaErrorUnknown;
  std::thread([&] { elsewhere = cudaGetLastError(); }).join();
  EQUAL(elsewhere, cudaSuccess);
  EQUAL(cudaGetLastError(), cudaErrorInvalidValue);
  EQUAL(cudaGetLastError(), cudaSuccess);
}

TEST(a_failure_of_work_stays_on_its_device) {
  const cudaStream_t stream = new_stream();
  bool ran = false;
  Gate gate;
  OK(launch(stream, gate.work()));
  OK(launch(stream, [] { throw std::runtime_error("an index is out of range"); }));
  OK(launch(stream, [&ran] { ran = true; }));
  gate.open();
  GIVES(cudaErrorAssert, cudaStreamSynchronize(stream));
  CHECK(!ran);
  for (int i = 0; i < 2; ++i) {
    GIVES(cudaErrorAssert, cudaDeviceSynchronize());
    GIVES(cudaErrorAssert, launch(stream, [] {}));
    EQUAL(cudaGetLastError(), cudaSuccess);  // until a call has returned the error again
    EQUAL(cudaPeekAtLastError(), cudaSuccess);
    void* memory = nullptr;
    GIVES(cudaErrorAssert, cudaMalloc(&memory, 16));
  }
  GIVES(cudaErrorAssert, cudaDeviceReset());
  GIVES(cudaErrorAssert, cudaDeviceSynchronize());
  int count = 0;
  EQUAL(cudaGetDeviceCount(&count), cudaSuccess);
  OK(cudaSetDevice(1));
  OK(cudaDeviceSynchronize());
  EQUAL(cudaGetLastError(), cudaSuccess);
}

TEST(events_of_dropped_work_are_done) {
  const cudaStream_t stream = new_stream();
  Gate gate;
  OK(launch(stream, gate.work()));
  simcudaFailDevice(0, cudaErrorIllegalAddress, "a test");
  simcudaFailDevice(0, cudaErrorAssert, "the first error stays");
  gate.open();
  GIVES(cudaErrorIllegalAddress, cudaDeviceSynchronize());
}

TEST(a_child_forked_after_initialisation_is_without_cuda) {
  const cudaStream_t stream = new_stream();
  OK(launch(stream, [] {}));
  const pid_t child = fork();
  if (child == 0) {
    int value = 0;
    const bool good = cudaGetDeviceCount(&value) == cudaErrorInitializationError &&
                      cudaStreamSynchronize(stream) == cudaErrorInitializationError &&
                      cudaGetLastError() == cudaErrorInitializationError;
    std::exit(good ? 0 : 1);  // runs the destructors of statics, and of this thread's objects
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  EQUAL(status, 0);
  OK(cudaStreamSynchronize(stream));
}

TEST(a_child_forked_before_initialisation_has_cuda) {
  int version = 0;
  OK(cudaRuntimeGetVersion(&version));
  EQUAL(version / 1000, CUDART_VERSION / 1000);
  EQUAL(simcudaIsInitialized(), 0);
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    std::exit(cudaGetDeviceCount(&count) == cudaSuccess && count == 2 ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  EQUAL(status, 0);
}

TEST(work_that_is_left_ends_with_the_process) {
  const pid_t child = fork();
  if (child == 0) {
    const cudaStream_t stream = new_stream();
    launch(stream, [] { usleep(1000); });
    for (int i = 0; i < 1000; ++i) launch(stream, [] { usleep(100000); });
    std::exit(3);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

TEST(work_that_runs_when_the_process_ends_is_waited_for) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    std::atomic<bool> begun{false};
    launch(new_stream(), [&begun, out = ends[1]] {
      begun = true;
      usleep(50000);
      [[maybe_unused]] const auto written = write(out, "x", 1);
    });
    while (!begun) usleep(100);
    std::exit(0);
  }
  close(ends[1]);
  char got = 0;
  CHECK(read(ends[0], &got, 1) == 1);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  EQUAL(status, 0);
}

TEST(devices_are_as_said) {
  int count = 0, value = 0;
  OK(cudaGetDeviceCount(&count));
  EQUAL(count, 2);
  GIVES(cudaErrorInvalidDevice, cudaSetDevice(2));
  GIVES(cudaErrorInvalidDevice, cudaSetDevice(-1));
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 1));
  EQUAL(std::string(properties.name), "Simulated H100 (no GPU)");
  EQUAL(properties.totalGlobalMem, std::size_t{64} << 20);
  EQUAL(properties.multiProcessorCount, 132);
  OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
  EQUAL(value, 9);
  GIVES(cudaErrorInvalidValue, cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(100000), 0));
  char text[16];
  OK(cudaDeviceGetPCIBusId(text, sizeof text, 1));
  EQUAL(std::string(text), "0000:02:00.0");
  OK(cudaDeviceGetByPCIBusId(&value, text));
  EQUAL(value, 1);
  GIVES(cudaErrorInvalidValue, cudaDeviceGetPCIBusId(text, 4, 1));
}

TEST(peers_are_enabled_once) {
  int can = 0;
  OK(cudaDeviceCanAccessPeer(&can, 0, 1));
  EQUAL(can, 1);
  OK(cudaDeviceCanAccessPeer(&can, 0, 0));
  EQUAL(can, 0);
  GIVES(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
  OK(cudaDeviceEnablePeerAccess(1, 0));
  GIVES(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
  GIVES(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(0, 0));
  GIVES(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(7, 0));
  GIVES(cudaErrorInvalidValue, cudaDeviceEnablePeerAccess(1, 1));
  OK(cudaDeviceDisablePeerAccess(1));
}

TEST(limits_are_kept) {
  std::size_t value = 0;
  OK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 1 << 20));
  OK(cudaDeviceGetLimit(&value, cudaLimitMallocHeapSize));
  EQUAL(value, std::size_t{1} << 20);
  GIVES(cudaErrorUnsupportedLimit, cudaDeviceGetLimit(&value, static_cast<cudaLimit>(99)));
}

TEST(masks_choose_devices) {
  const auto count_with = [](const char* mask) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("CUDA_VISIBLE_DEVICES", mask, 1);
      int count = 99;
      const cudaError_t error = cudaGetDeviceCount(&count);
      if (error == cudaErrorNoDevice) std::exit(count == 0 ? 10 : 98);
      cudaDeviceProp properties;
      cudaGetDeviceProperties(&properties, 0);
      std::exit(error == cudaSuccess ? count * 10 + static_cast<unsigned char>(properties.uuid.bytes[15]) + 10 : 99);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  EQUAL(count_with("0"), 20);
  EQUAL(count_with("1"), 21);
  EQUAL(count_with("1,0"), 31);
  EQUAL(count_with("GPU-51ed0000-0000-4000-8000-000000000001"), 21);
  EQUAL(count_with(""), 10);
  EQUAL(count_with("-1"), 10);
  EQUAL(count_with("0,7,1"), 20);
  EQUAL(count_with("1,1"), 10);
  EQUAL(count_with("GPU-51ed"), 10);  // both
}

}  // namespace simcuda::testing
