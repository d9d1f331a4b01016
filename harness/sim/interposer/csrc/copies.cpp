// Copies and fills.
#include <map>
#include <mutex>

#include "front.h"
#include "work.h"

using namespace interposer;

namespace {

cudaPointerAttributes attributes(const void* address) {
  cudaPointerAttributes found{};
  if (NEXT(cudaPointerGetAttributes)(&found, address) != cudaSuccess) {
    NEXT(cudaGetLastError)();
    found.type = cudaMemoryTypeUnregistered;
  }
  return found;
}

bool of_device(const cudaPointerAttributes& memory) {
  return memory.type == cudaMemoryTypeDevice || memory.type == cudaMemoryTypeManaged;
}

// Returns a stream of this library on the device, in which no other work is queued.
cudaStream_t side_stream(int device) {
  static std::mutex mutex;
  static std::map<int, cudaStream_t> streams;
  const std::lock_guard lock(mutex);
  cudaStream_t& stream = streams[device];
  if (stream == nullptr) {
    int current = device;
    NEXT(cudaGetDevice)(&current);
    NEXT(cudaSetDevice)(device);
    NEXT(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking);
    NEXT(cudaSetDevice)(current);
  }
  return stream;
}

constexpr int changed = 0x55;

// Corrupts the target after the copy, in its stream.
cudaError_t corrupt(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  char* const place = static_cast<char*>(to) + bytes / 2;
  const auto target = attributes(to), source = attributes(from);
  if (of_device(target)) {
    const int value = of_device(source) ? changed : static_cast<const char*>(from)[bytes / 2] ^ changed;
    return NEXT(cudaMemsetAsync)(place, value & 0xff, 1, stream);
  }
  if (target.type == cudaMemoryTypeHost || capturing(stream)) {
    return NEXT(cudaLaunchHostFunc)(stream, [](void* at) { *static_cast<char*>(at) ^= changed; }, place);
  }
  *place ^= changed;  // pageable memory: the copy is done when the call returns
  return cudaSuccess;
}

bool stays_stale(const void* to) {
  return injected(Fault::managed_memory_stale) && attributes(to).type == cudaMemoryTypeManaged &&
         strikes(Fault::managed_memory_stale);
}

// `copy` queues a copy of the given number of bytes in the given stream.
template <typename Give>
cudaError_t copied(void* to, const void* from, std::size_t bytes, cudaStream_t stream, bool asynchronous, Give copy) {
  if (bytes == 0) return copy(bytes, stream);
  if (stays_stale(to)) return cudaSuccess;
  if (asynchronous && injected(Fault::peer_copy_unordered) && !capturing(stream)) {
    const auto target = attributes(to), source = attributes(from);
    if (of_device(target) && of_device(source) && target.device != source.device &&
        strikes(Fault::peer_copy_unordered)) {
      return copy(bytes, side_stream(source.device));
    }
  }
  if (strikes(Fault::copy_drops_bytes)) bytes -= bytes / 4 + 1;
  const auto now = [&]() -> cudaError_t {
    const cudaError_t error = bytes == 0 ? cudaSuccess : copy(bytes, stream);
    if (error != cudaSuccess || bytes == 0 || !strikes(Fault::copy_corrupts_bytes)) return error;
    return corrupt(to, from, bytes, stream);
  };
  std::function<cudaError_t()> later;
  // Only for device memory, since host memory may be freed before the copy.
  if (asynchronous && injected(Fault::wrong_stream_order) && of_device(attributes(to)) && of_device(attributes(from))) {
    later = [copy, bytes, stream] { return copy(bytes, stream); };
  }
  const cudaError_t error = give(stream, Work::other, now, std::move(later));
  if (error == cudaSuccess && asynchronous && injected(Fault::non_blocking_blocks) && !capturing(stream) &&
      strikes(Fault::non_blocking_blocks)) {
    return NEXT(cudaStreamSynchronize)(stream);
  }
  return error;
}

}  // namespace

EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  FRONT(cudaMemcpyAsync, of_stream, (to, from, bytes, kind, stream), {
    return copied(to, from, bytes, stream, true,
                  [=](size_t most, cudaStream_t where) { return next(to, from, most, kind, where); });
  });
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                       cudaStream_t stream) {
  FRONT(cudaMemcpyPeerAsync, of_stream, (to, to_device, from, from_device, bytes, stream), {
    return copied(to, from, bytes, stream, true,
                  [=](size_t most, cudaStream_t where) { return next(to, to_device, from, from_device, most, where); });
  });
}

EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  FRONT(cudaMemcpy, any, (to, from, bytes, kind), {
    return copied(to, from, bytes, nullptr, false,
                  [=](size_t most, cudaStream_t) { return next(to, from, most, kind); });
  });
}

EXPORT cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
  FRONT(cudaMemcpyPeer, any, (to, to_device, from, from_device, bytes), {
    return copied(to, from, bytes, nullptr, false,
                  [=](size_t most, cudaStream_t) { return next(to, to_device, from, from_device, most); });
  });
}

EXPORT cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  FRONT(cudaMemsetAsync, of_stream, (address, value, bytes, stream), {
    if (stays_stale(address) || strikes(Fault::fill_ignored)) return cudaSuccess;
    const auto fill = [=] { return next(address, value, bytes, stream); };
    return give(stream, Work::other, fill, fill);
  });
}

EXPORT cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  FRONT(cudaMemset, any, (address, value, bytes), {
    if (stays_stale(address) || strikes(Fault::fill_ignored)) return cudaSuccess;
    return next(address, value, bytes);
  });
}
