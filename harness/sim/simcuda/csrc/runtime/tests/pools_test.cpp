// Stream-ordered memory, pools, and memory of graphs.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "check.h"

namespace simcuda::testing {

namespace {

cudaMemPool_t default_pool() {
  cudaMemPool_t pool = nullptr;
  OK(cudaDeviceGetDefaultMemPool(&pool, 0));
  return pool;
}

std::uint64_t attribute(cudaMemPool_t pool, cudaMemPoolAttr which) {
  std::uint64_t value = 0;
  OK(cudaMemPoolGetAttribute(pool, which, &value));
  return value;
}

std::uint64_t graph_attribute(cudaGraphMemAttributeType which) {
  std::uint64_t value = 0;
  OK(cudaDeviceGetGraphMemAttribute(0, which, &value));
  return value;
}

void keep(std::uint64_t bytes) { OK(cudaMemPoolSetAttribute(default_pool(), cudaMemPoolAttrReleaseThreshold, &bytes)); }

}  // namespace

TEST(a_stream_gets_at_once_what_it_freed) {
  keep(~0ull);
  Gate gate;
  const cudaStream_t stream = new_stream(), other = new_stream();
  void *first = nullptr, *again = nullptr, *elsewhere = nullptr;
  OK(cudaMallocAsync(&first, MiB, stream));
  OK(launch(stream, gate.work()));
  OK(cudaFreeAsync(first, stream));
  OK(cudaMallocAsync(&elsewhere, MiB, other));  // the first stream's work is not done
  CHECK(elsewhere != first);
  OK(cudaMallocAsync(&again, MiB, stream));
  CHECK(again == first);
  gate.open();
  OK(cudaFreeAsync(again, stream));
  OK(cudaStreamSynchronize(stream));
  void* later = nullptr;
  OK(cudaMallocAsync(&later, MiB, other));
  CHECK(later == first);
  OK(cudaDeviceSynchronize());
}

TEST(the_last_memory_is_had_by_waiting) {
  keep(~0ull);
  Gate gate;
  const cudaStream_t stream = new_stream(), other = new_stream();
  void *all = nullptr, *again = nullptr;
  OK(cudaMallocAsync(&all, 60 * MiB, stream));
  OK(launch(stream, gate.work()));
  OK(cudaFreeAsync(all, stream));
  OK(cudaMallocAsync(&again, 60 * MiB, other));
  GIVES(cudaErrorNotReady, cudaStreamQuery(other));  // the stream waits for the other stream
  gate.open();
  OK(cudaStreamSynchronize(other));
  OK(cudaFree(again));
  void* too_much = nullptr;
  GIVES(cudaErrorMemoryAllocation, cudaMallocAsync(&too_much, 65 * MiB, other));
}

TEST(unused_memory_is_released_when_the_program_waits) {
  const cudaStream_t stream = new_stream();
  const cudaMemPool_t pool = default_pool();
  void* memory = nullptr;
  OK(cudaMallocAsync(&memory, MiB, stream));
  EQUAL(attribute(pool, cudaMemPoolAttrUsedMemCurrent), MiB);
  EQUAL(attribute(pool, cudaMemPoolAttrReservedMemCurrent), 32 * MiB);
  EQUAL(free_bytes(), at_first - 32 * MiB);
  OK(cudaFreeAsync(memory, stream));
  EQUAL(attribute(pool, cudaMemPoolAttrUsedMemCurrent), 0u);
  EQUAL(attribute(pool, cudaMemPoolAttrReservedMemCurrent), 32 * MiB);
  OK(cudaStreamSynchronize(stream));
  EQUAL(attribute(pool, cudaMemPoolAttrReservedMemCurrent), 0u);
  EQUAL(free_bytes(), at_first);
  EQUAL(attribute(pool, cudaMemPoolAttrUsedMemHigh), MiB);
  std::uint64_t zero = 0, one = 1;
  OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &zero));
  EQUAL(attribute(pool, cudaMemPoolAttrUsedMemHigh), 0u);
  GIVES(cudaErrorInvalidValue, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &one));
  GIVES(cudaErrorInvalidValue, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &zero));
}

TEST(a_threshold_keeps_memory_until_it_is_trimmed_or_needed) {
  keep(~0ull);
  const cudaStream_t stream = new_stream();
  void *memory = nullptr, *other = nullptr;
  OK(cudaMallocAsync(&memory, MiB, stream));
  OK(cudaFreeAsync(memory, stream));
  OK(cudaStreamSynchronize(stream));
  EQUAL(free_bytes(), at_first - 32 * MiB);
  OK(cudaMemPoolTrimTo(default_pool(), 32 * MiB));
  EQUAL(free_bytes(), at_first - 32 * MiB);
  OK(cudaMemPoolTrimTo(default_pool(), 0));
  EQUAL(free_bytes(), at_first);
  OK(cudaMallocAsync(&memory, MiB, stream));
  OK(cudaFreeAsync(memory, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaMalloc(&other, 60 * MiB));
  OK(cudaFree(other));
}

TEST(pieces_do_not_overlap_and_are_joined_again) {
  keep(~0ull);
  const cudaStream_t stream = new_stream();
  std::vector<char*> pieces;
  for (int i = 0; i < 1000; ++i) {
    void* piece = nullptr;
    OK(cudaMallocAsync(&piece, 1 + 37 * static_cast<std::size_t>(i % 50), stream));
    pieces.push_back(static_cast<char*>(piece));
  }
  const std::set<char*> different(pieces.begin(), pieces.end());
  EQUAL(different.size(), pieces.size());
  for (std::size_t i = 0; i < pieces.size(); i += 2) OK(cudaFreeAsync(pieces[i], stream));
  for (std::size_t i = 1; i < pieces.size(); i += 2) OK(cudaFreeAsync(pieces[i], stream));
  EQUAL(attribute(default_pool(), cudaMemPoolAttrUsedMemCurrent), 0u);
  void* whole = nullptr;
  OK(cudaMallocAsync(&whole, 32 * MiB, stream));  // the chunk is one piece again
  EQUAL(attribute(default_pool(), cudaMemPoolAttrReservedMemCurrent), 32 * MiB);
}

TEST(pools_of_the_program) {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = 0;
  cudaMemPool_t pool = nullptr, current = nullptr;
  OK(cudaMemPoolCreate(&pool, &props));
  OK(cudaDeviceSetMemPool(0, pool));
  OK(cudaDeviceGetMemPool(&current, 0));
  CHECK(current == pool);
  GIVES(cudaErrorInvalidValue, cudaDeviceSetMemPool(1, pool));
  const cudaStream_t stream = new_stream();
  void* memory = nullptr;
  OK(cudaMallocAsync(&memory, MiB, stream));
  EQUAL(attribute(pool, cudaMemPoolAttrUsedMemCurrent), MiB);
  EQUAL(attribute(default_pool(), cudaMemPoolAttrUsedMemCurrent), 0u);
  OK(cudaMemPoolDestroy(pool));  // its memory stays valid
  OK(cudaMemsetAsync(memory, 1, MiB, stream));
  OK(cudaFreeAsync(memory, stream));
  OK(cudaStreamSynchronize(stream));
  EQUAL(free_bytes(), at_first);
  GIVES(cudaErrorInvalidValue, cudaMemPoolTrimTo(pool, 0));
  GIVES(cudaErrorInvalidValue, cudaMemPoolDestroy(default_pool()));
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(memory, stream));
}

TEST(a_graph_has_memory_of_its_own) {
  const cudaStream_t stream = new_stream();
  void *memory = nullptr, *pinned = nullptr;
  OK(cudaMallocHost(&pinned, KiB));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaMallocAsync(&memory, MiB, stream));
  OK(cudaMemsetAsync(memory, 3, KiB, stream));
  OK(cudaMemcpyAsync(pinned, memory, KiB, cudaMemcpyDeviceToHost, stream));
  OK(cudaFreeAsync(memory, stream));
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(stream, &graph));
  EQUAL(free_bytes(), at_first);
  cudaGraphExec_t exec = nullptr;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < 3; ++round) OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  EQUAL(int{static_cast<char*>(pinned)[0]}, 3);
  EQUAL(graph_attribute(cudaGraphMemAttrUsedMemCurrent), 0u);
  EQUAL(graph_attribute(cudaGraphMemAttrUsedMemHigh), MiB);
  EQUAL(graph_attribute(cudaGraphMemAttrReservedMemCurrent), MiB);
  EQUAL(free_bytes(), at_first - MiB);
  OK(cudaDeviceGraphMemTrim(0));
  EQUAL(graph_attribute(cudaGraphMemAttrReservedMemCurrent), 0u);
  EQUAL(free_bytes(), at_first);
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
}

TEST(what_a_graph_allocates_the_program_may_free) {
  const cudaStream_t stream = new_stream();
  void* memory = nullptr;
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaMallocAsync(&memory, MiB, stream));
  OK(cudaMemsetAsync(memory, 5, KiB, stream));
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = nullptr;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(memory, stream));  // not allocated yet
  OK(cudaGraphLaunch(exec, stream));
  GIVES(cudaErrorInvalidValue, cudaGraphLaunch(exec, stream));  // not before the memory is freed
  char value = 0;
  OK(cudaMemcpyAsync(&value, memory, 1, cudaMemcpyDeviceToHost, stream));
  EQUAL(int{value}, 5);
  OK(cudaFreeAsync(memory, stream));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  // The memory outlives its graph.
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  OK(cudaMemcpyAsync(&value, memory, 1, cudaMemcpyDeviceToHost, stream));
  EQUAL(int{value}, 5);
  OK(cudaFree(memory));
  GIVES(cudaErrorInvalidValue, cudaFree(memory));
  EQUAL(free_bytes(), at_first);
}

TEST(only_memory_of_graphs_is_freed_in_a_capture) {
  const cudaStream_t stream = new_stream();
  void* memory = nullptr;
  OK(cudaMallocAsync(&memory, KiB, stream));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  GIVES(cudaErrorInvalidValue, cudaFreeAsync(memory, stream));
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphDestroy(graph));
  OK(cudaFree(memory));
}

}  // namespace simcuda::testing
