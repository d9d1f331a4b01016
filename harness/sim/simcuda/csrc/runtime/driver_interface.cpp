// Functions of the runtime that the driver, libcuda, calls.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "activity.h"
#include "allocations.h"
#include "capture.h"
#include "context.h"
#include "copy.h"
#include "driver_call.h"
#include "ledger.h"
#include "memory.h"
#include "process.h"
#include "simcuda_driver.h"

using namespace simcuda;

namespace {

unsigned long long read(const void* address, unsigned size) {
  return size == 4 ? __atomic_load_n(static_cast<const std::uint32_t*>(address), __ATOMIC_ACQUIRE)
                   : __atomic_load_n(static_cast<const std::uint64_t*>(address), __ATOMIC_ACQUIRE);
}

// CUDA Driver API, CUstreamWaitValue_flags: the comparison wraps around.
bool holds(unsigned long long found, unsigned long long wanted, unsigned size, unsigned flags) {
  const auto difference = size == 4 ? static_cast<std::int32_t>(static_cast<std::uint32_t>(found - wanted))
                                    : static_cast<std::int64_t>(found - wanted);
  switch (flags & 3U) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return difference == 0;
    case CU_STREAM_WAIT_VALUE_AND:
      return (found & wanted) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return (size == 4 ? static_cast<std::uint32_t>(~(found | wanted)) : ~(found | wanted)) != 0;
    default:
      return difference >= 0;
  }
}

constexpr auto interval = std::chrono::microseconds(100);

}  // namespace

SIMCUDA_EXPORT void simcudaBeginCall(SimcudaCall* call, const char* name, int driver) {
  call->driver = driver != 0;
  if (call->driver) enter_driver();
  if (activity::observed()) activity::begin(*call, name, call->driver);
}
SIMCUDA_EXPORT void simcudaEndCall(SimcudaCall* call) {
  if (call->name != nullptr) activity::end(*call);
  if (call->driver) leave_driver();
}

SIMCUDA_EXPORT int simcudaDeviceCount() { return forked() ? 0 : device_count(); }
SIMCUDA_EXPORT int simcudaCurrentDevice() { return forked() ? -1 : current_index(); }

SIMCUDA_EXPORT int simcudaRuntimeUsed() { return in_use(); }

SIMCUDA_EXPORT CUresult simcudaResetDevice(int index) {
  return driver_call<Needs::driver>(__func__, [&] {
    Device& of = device(index);
    if (!awake(of)) return;
    drain(of);
    for (const Allocation& allocation : remove_device_memory(of)) free_device(allocation);
    ledger::close_context(of.number);
  });
}

SIMCUDA_EXPORT int simcudaFindAllocation(const void* address, SimcudaAllocation* allocation) {
  if (forked()) return 0;
  const auto found = find_allocation(address);
  if (!found) return 0;
  *allocation = {found->base,
                 found->size,
                 found->type(),
                 found->device->index,
                 found->id,
                 found->kind == Allocation::Kind::pool,
                 found->kind == Allocation::Kind::mapped};
  return 1;
}

SIMCUDA_EXPORT CUresult simcudaStreamWriteValue(cudaStream_t handle, void* address, unsigned long long value,
                                                unsigned size) {
  return driver_call<Needs::device>(__func__, [&] {
    const auto stream = find_stream(handle);
    check(find_allocation(address) && reinterpret_cast<std::uintptr_t>(address) % size == 0);
    Operation operation;
    operation.name = "write value";
    operation.work = [address, value, size] {
      if (size == 4) {
        __atomic_store_n(static_cast<std::uint32_t*>(address), static_cast<std::uint32_t>(value), __ATOMIC_RELEASE);
      } else {
        __atomic_store_n(static_cast<std::uint64_t*>(address), value, __ATOMIC_RELEASE);
      }
    };
    return submit(*stream, std::move(operation));
  });
}

// Writes to the memory cannot notify a waiter, so a thread polls it from the time when the stream reaches the wait
// until the wait ends.
SIMCUDA_EXPORT CUresult simcudaStreamWaitValue(cudaStream_t handle, const void* address, unsigned long long value,
                                               unsigned size, unsigned flags) {
  return driver_call<Needs::device>(__func__, [&]() -> cudaError_t {
    const auto stream = find_stream(handle);
    check(find_allocation(address) && reinterpret_cast<std::uintptr_t>(address) % size == 0);
    check(!capture_of(*stream), cudaErrorNotSupported);
    auto mark = std::make_shared<Mark>();
    Item look;
    look.task = [=] {
      if (holds(read(address, size), value, size, flags)) return mark->finish();
      std::thread([=] {
        while (!holds(read(address, size), value, size, flags) && !pool().abandoned()) {
          std::this_thread::sleep_for(interval);
        }
        mark->finish();
      }).detach();
    };
    stream->push(std::vector<Item>{std::move(look)});
    stream->wait(std::move(mark));
    return cudaSuccess;
  });
}

SIMCUDA_EXPORT CUresult simcudaFill(void* address, size_t pitch, unsigned value, unsigned element, size_t width,
                                    size_t height, cudaStream_t handle, int synchronous) {
  return driver_call<Needs::device>(__func__, [&]() -> cudaError_t {
    if (width == 0 || height == 0) return cudaSuccess;
    const auto stream = find_stream(handle);
    if (synchronous) forbid_implicit(*stream, "cuMemset");
    return submit(*stream, fill_operation({address, pitch, value, element, width, height}, synchronous != 0));
  });
}
