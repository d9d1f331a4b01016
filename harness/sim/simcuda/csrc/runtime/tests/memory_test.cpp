// Memory of devices and of the host, copies, fills and addresses.

#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace simcuda::testing {

namespace {

long descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

// Returns the resident bytes of this process.
std::size_t resident() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0, pages = 0;
  file >> all >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

cudaMemoryType type_of(const void* address) {
  cudaPointerAttributes attributes;
  OK(cudaPointerGetAttributes(&attributes, address));
  return attributes.type;
}

}  // namespace

TEST(memory_is_counted_and_limited) {
  EQUAL(free_bytes(), at_first);
  void *all = nullptr, *more = nullptr;
  OK(cudaMalloc(&all, 60 * MiB));
  EQUAL(free_bytes(), at_first - 60 * MiB);
  GIVES(cudaErrorMemoryAllocation, cudaMalloc(&more, 8 * MiB));
  CHECK(more == nullptr);
  OK(cudaSetDevice(1));  // each device has its own memory
  OK(cudaMalloc(&more, 60 * MiB));
  OK(cudaFree(more));
  OK(cudaFree(all));
  OK(cudaSetDevice(0));
  EQUAL(free_bytes(), at_first);
  GIVES(cudaErrorMemoryAllocation, cudaMalloc(&more, ~std::size_t{0}));
  OK(cudaMalloc(&more, 0));
  CHECK(more == nullptr);
  OK(cudaFree(nullptr));
}

TEST(what_is_no_allocation_is_not_freed) {
  void *memory = nullptr, *host = nullptr;
  int local = 0;
  OK(cudaMalloc(&memory, KiB));
  OK(cudaMallocHost(&host, KiB));
  GIVES(cudaErrorInvalidValue, cudaFree(&local));
  GIVES(cudaErrorInvalidValue, cudaFree(static_cast<char*>(memory) + 1));
  GIVES(cudaErrorInvalidValue, cudaFree(host));
  GIVES(cudaErrorInvalidValue, cudaFreeHost(memory));
  OK(cudaFree(memory));
  GIVES(cudaErrorInvalidValue, cudaFree(memory));
  OK(cudaFreeHost(host));
  GIVES(cudaErrorInvalidValue, cudaFreeHost(host));
}

TEST(freed_memory_goes_back_to_the_system) {
  const auto use = [] {
    void* memory = nullptr;
    OK(cudaMalloc(&memory, 32 * MiB));
    OK(cudaMemset(memory, 1, 32 * MiB));
    OK(cudaDeviceSynchronize());
    const std::size_t had = resident();
    OK(cudaFree(memory));
    return had;
  };
  use();
  const long before = descriptors();
  for (int i = 0; i < 20; ++i) {
    const std::size_t had = use();
    CHECK(resident() < had - 24 * MiB);
  }
  EQUAL(descriptors(), before);
}

TEST(freeing_waits_for_the_device) {
  const cudaStream_t stream = new_stream();
  void* memory = nullptr;
  OK(cudaMalloc(&memory, KiB));
  std::atomic<bool> done{false};
  OK(launch(stream, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    done = true;
  }));
  OK(cudaFree(memory));
  CHECK(done);
}

TEST(work_that_uses_freed_memory_fails_its_device) {
  void *kept = nullptr, *freed = nullptr;
  OK(cudaMalloc(&kept, 2 * MiB));
  OK(cudaMalloc(&freed, 2 * MiB));
  const cudaStream_t stream = new_stream();
  OK(cudaMemsetAsync(freed, 1, 2 * MiB, stream));
  OK(cudaFree(freed));  // waits for the work
  OK(launch(stream, [kept] { std::memset(kept, 1, 2 * MiB); }));
  OK(cudaStreamSynchronize(stream));
  int value = 0;
  OK(launch(stream, [freed, &value] { value = *static_cast<char*>(freed); }));
  GIVES(cudaErrorIllegalAddress, cudaStreamSynchronize(stream));
}

TEST(freed_addresses_are_used_again) {
  void *first = nullptr, *second = nullptr;
  OK(cudaMalloc(&first, KiB));
  OK(cudaFree(first));
  OK(cudaMalloc(&second, KiB));
  EQUAL(second, first);
  OK(cudaMemset(second, 7, KiB));
  char value = 0;
  OK(cudaMemcpy(&value, second, 1, cudaMemcpyDeviceToHost));
  EQUAL(int{value}, 7);
}

TEST(addresses_tell_what_they_are) {
  void *device = nullptr, *host = nullptr, *managed = nullptr;
  std::vector<char> plain(64 * KiB);
  OK(cudaMalloc(&device, KiB));
  OK(cudaHostAlloc(&host, KiB, cudaHostAllocPortable));
  OK(cudaMallocManaged(&managed, KiB, cudaMemAttachGlobal));
  CHECK(type_of(device) == cudaMemoryTypeDevice);
  CHECK(type_of(static_cast<char*>(device) + KiB - 1) == cudaMemoryTypeDevice);
  CHECK(type_of(host) == cudaMemoryTypeHost);
  CHECK(type_of(managed) == cudaMemoryTypeManaged);
  CHECK(type_of(plain.data()) == cudaMemoryTypeUnregistered);
  OK(cudaHostRegister(plain.data(), plain.size(), cudaHostRegisterDefault));
  CHECK(type_of(plain.data() + 100) == cudaMemoryTypeHost);
  OK(cudaHostUnregister(plain.data()));
  CHECK(type_of(plain.data()) == cudaMemoryTypeUnregistered);
  unsigned flags = 0;
  OK(cudaHostGetFlags(&flags, host));
  CHECK(flags & cudaHostAllocPortable);
  OK(cudaFree(device));
  OK(cudaFree(managed));
  OK(cudaFreeHost(host));
  CHECK(type_of(device) == cudaMemoryTypeUnregistered);
}

TEST(registering_is_refused_where_it_must_be) {
  std::vector<char> plain(64 * KiB);
  OK(cudaHostRegister(plain.data(), plain.size(), cudaHostRegisterDefault));
  GIVES(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(plain.data(), KiB, cudaHostRegisterDefault));
  GIVES(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(plain.data() + KiB, KiB, cudaHostRegisterDefault));
  OK(cudaHostUnregister(plain.data()));
  GIVES(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(plain.data()));
  GIVES(cudaErrorInvalidValue, cudaHostRegister(nullptr, KiB, cudaHostRegisterDefault));
  GIVES(cudaErrorInvalidValue, cudaHostRegister(plain.data(), 0, cudaHostRegisterDefault));
  GIVES(cudaErrorInvalidValue, cudaHostRegister(reinterpret_cast<void*>(4096), KiB, cudaHostRegisterDefault));
}

TEST(copies_go_every_way) {
  std::vector<int> source(1000, 3), target(1000);
  int *one = nullptr, *two = nullptr;
  OK(cudaMalloc(reinterpret_cast<void**>(&one), 4000));
  OK(cudaSetDevice(1));
  OK(cudaMalloc(reinterpret_cast<void**>(&two), 4000));
  OK(cudaMemcpy(one, source.data(), 4000, cudaMemcpyHostToDevice));
  OK(cudaMemcpyPeer(two, 1, one, 0, 4000));
  OK(cudaMemcpy(target.data(), two, 4000, cudaMemcpyDefault));
  CHECK(target == source);
  OK(cudaMemset(two, 0xff, 4));
  OK(cudaMemcpy(target.data(), two, 8, cudaMemcpyDeviceToHost));
  EQUAL(target[0], -1);
  EQUAL(target[1], 3);
  OK(cudaMemcpy(one, two, 0, cudaMemcpyDeviceToDevice));
}

TEST(rows_are_copied_with_their_pitches) {
  const char source[] = "abc.def.ghi.";
  char target[9] = {};
  void* memory = nullptr;
  std::size_t pitch = 0;
  OK(cudaMallocPitch(&memory, &pitch, 3, 3));
  CHECK(pitch >= 3 && pitch % 256 == 0);
  OK(cudaMemcpy2D(memory, pitch, source, 4, 3, 3, cudaMemcpyHostToDevice));
  OK(cudaMemcpy2D(target, 3, memory, pitch, 3, 3, cudaMemcpyDeviceToHost));
  EQUAL(std::string(target, 9), "abcdefghi");
  GIVES(cudaErrorInvalidPitchValue, cudaMemcpy2D(target, 2, memory, pitch, 3, 3, cudaMemcpyDeviceToHost));
}

TEST(copies_of_what_is_not_there_are_refused) {
  std::vector<char> host(KiB);
  void* memory = nullptr;
  OK(cudaMalloc(&memory, KiB));
  GIVES(cudaErrorInvalidValue, cudaMemcpy(memory, host.data(), KiB + 1, cudaMemcpyHostToDevice));
  GIVES(cudaErrorInvalidValue, cudaMemcpy(host.data(), host.data(), KiB, cudaMemcpyHostToDevice));
  GIVES(cudaErrorInvalidValue, cudaMemcpy(memory, host.data(), KiB, cudaMemcpyDeviceToDevice));
  GIVES(cudaErrorInvalidValue, cudaMemcpy(memory, nullptr, KiB, cudaMemcpyHostToDevice));
  GIVES(cudaErrorInvalidMemcpyDirection, cudaMemcpy(memory, host.data(), KiB, static_cast<cudaMemcpyKind>(9)));
  GIVES(cudaErrorInvalidValue, cudaMemset(memory, 0, KiB + 1));
  GIVES(cudaErrorInvalidValue, cudaMemset(host.data(), 0, KiB));
}

// CUDA Runtime API, "API synchronization behavior".
TEST(what_a_copy_waits_for_depends_on_the_memory) {
  Gate gate;
  cudaStream_t stream;
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  void *device = nullptr, *other = nullptr, *pinned = nullptr;
  OK(cudaMalloc(&device, KiB));
  OK(cudaMalloc(&other, KiB));
  OK(cudaMallocHost(&pinned, KiB));
  std::vector<char> pageable(KiB, 5);
  OK(launch(stream, gate.work()));
  // None of these calls waits. When they return, pageable memory has been read, but pinned memory has not.
  std::memset(pinned, 1, KiB);
  OK(cudaMemcpyAsync(device, pageable.data(), KiB, cudaMemcpyHostToDevice, stream));
  OK(cudaMemcpyAsync(other, pinned, KiB, cudaMemcpyHostToDevice, stream));
  std::fill(pageable.begin(), pageable.end(), 6);
  std::memset(pinned, 2, KiB);
  GIVES(cudaErrorNotReady, cudaStreamQuery(stream));
  std::thread opener([&] { gate.open(); });
  // This call waits, since its target is pageable.
  OK(cudaMemcpyAsync(pageable.data(), device, KiB, cudaMemcpyDeviceToHost, stream));
  EQUAL(int{pageable[0]}, 5);
  opener.join();
  OK(cudaMemcpy(pageable.data(), other, KiB, cudaMemcpyDeviceToHost));
  EQUAL(int{pageable[0]}, 2);
}

TEST(copies_between_devices_do_not_wait) {
  Gate gate;
  void *from = nullptr, *to = nullptr;
  OK(cudaMalloc(&from, KiB));
  OK(cudaMalloc(&to, KiB));
  OK(launch(nullptr, gate.work()));
  OK(cudaMemcpy(to, from, KiB, cudaMemcpyDeviceToDevice));
  OK(cudaMemset(to, 1, KiB));
  GIVES(cudaErrorNotReady, cudaStreamQuery(nullptr));
}

TEST(a_capture_forbids_memory_that_is_made_and_given_back) {
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  void *memory = nullptr, *more = nullptr;
  OK(cudaMalloc(&memory, KiB));
  const auto refused = [&](auto call) {
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    GIVES(cudaErrorStreamCaptureUnsupported, call());
    cudaGraph_t graph = nullptr;
    GIVES(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
  };
  refused([&] { return cudaMalloc(&more, KiB); });
  refused([&] { return cudaFree(memory); });
  refused([&] { return cudaMallocHost(&more, KiB); });
  refused([&] { return cudaHostRegister(&more, sizeof more, 0); });
  OK(cudaFree(memory));
}

TEST(copies_and_fills_are_captured) {
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  void *memory = nullptr, *pinned = nullptr;
  OK(cudaMalloc(&memory, KiB));
  OK(cudaMallocHost(&pinned, KiB));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaMemsetAsync(memory, 9, KiB, stream));
  OK(cudaMemcpyAsync(pinned, memory, KiB, cudaMemcpyDeviceToHost, stream));
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(stream, &graph));
  cudaGraphNode_t nodes[2];
  std::size_t count = 2;
  OK(cudaGraphGetNodes(graph, nodes, &count));
  EQUAL(count, 2u);
  cudaGraphNodeType type;
  OK(cudaGraphNodeGetType(nodes[0], &type));
  CHECK(type == cudaGraphNodeTypeMemset);
  OK(cudaGraphNodeGetType(nodes[1], &type));
  CHECK(type == cudaGraphNodeTypeMemcpy);
  cudaGraphExec_t exec = nullptr;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < 2; ++round) {
    std::memset(pinned, 0, KiB);
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    EQUAL(int{static_cast<char*>(pinned)[KiB - 1]}, 9);
  }
}

// The child is effectively a new program: it did not use CUDA before the fork.
TEST(another_process_opens_memory_by_its_handle) {
  int to_child[2], to_parent[2];
  CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
  const pid_t child = fork();
  if (child == 0) {
    cudaIpcMemHandle_t handle;
    bool good = read(to_child[0], &handle, sizeof handle) == static_cast<ssize_t>(sizeof handle);
    void *memory = nullptr, *again = nullptr;
    good = good && cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    good = good && cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    int value = 0;
    good = good && memory == again && cudaMemcpy(&value, memory, 4, cudaMemcpyDeviceToHost) == cudaSuccess;
    good = good && value == 42 && cudaMemset(memory, 0xff, 4) == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess;
    good = good && cudaFree(memory) == cudaErrorInvalidValue;
    good = good && cudaIpcCloseMemHandle(memory) == cudaSuccess && cudaIpcCloseMemHandle(memory) == cudaSuccess;
    good = good && cudaIpcCloseMemHandle(memory) == cudaErrorInvalidValue;
    _exit(good ? 0 : 1);
  }
  void *padding = nullptr, *memory = nullptr;
  OK(cudaMalloc(&padding, 3 * MiB));  // so that the memory does not begin at the file's offset 0
  OK(cudaMalloc(&memory, KiB));
  int value = 42;
  OK(cudaMemcpy(memory, &value, 4, cudaMemcpyHostToDevice));
  cudaIpcMemHandle_t handle;
  OK(cudaIpcGetMemHandle(&handle, memory));
  void* own = nullptr;
  GIVES(cudaErrorDeviceUninitialized, cudaIpcOpenMemHandle(&own, handle, cudaIpcMemLazyEnablePeerAccess));
  CHECK(write(to_child[1], &handle, sizeof handle) == static_cast<ssize_t>(sizeof handle));
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  EQUAL(status, 0);
  OK(cudaMemcpy(&value, memory, 4, cudaMemcpyDeviceToHost));
  EQUAL(value, -1);
  // The call detects that the process is gone.
  GIVES(cudaErrorInvalidValue, cudaIpcGetMemHandle(&handle, &value));
}

}  // namespace simcuda::testing
