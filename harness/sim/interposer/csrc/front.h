// A function of CUDA's runtime as the program sees it: it may do what it is told, break it, and pass it on to the
// runtime behind this library, be it NVIDIA's or the simulated one.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <type_traits>

#include "export.h"
#include "faults.h"

namespace interposer {

// The function of this name in the library that is loaded behind this one; null if there is none.
void* find_next(const char* name);

template <typename Function>
Function* next_of(std::atomic<void*>& known, const char* name) {
  void* found = known.load(std::memory_order_relaxed);
  if (found == nullptr) {
    found = find_next(name);
    known.store(found, std::memory_order_relaxed);
  }
  return reinterpret_cast<Function*>(found);
}

// The runtime's own function.
#define NEXT(name)                                                                        \
  ([] {                                                                                   \
    static std::atomic<void*> known{nullptr};                                             \
    return ::interposer::next_of<std::remove_pointer_t<decltype(&::name)>>(known, #name); \
  }())

// What a runtime calls of its own interface, and what this library calls of it, is not the program's.
class Within {
 public:
  Within() { ++depth; }
  ~Within() { --depth; }
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;
  static bool now() { return depth > 0; }

 private:
  static thread_local int depth;
};

// An error that the runtime behind knows nothing of: it becomes the thread's last one.
cudaError_t refuse(cudaError_t error);
void forget_not_ready();  // the runtime has noted cudaErrorNotReady, which the program is not told
// What is injected about errors, for the result of a call.
cudaError_t reported(cudaError_t error);
// The error of the current device if it was lost, or success.
cudaError_t lost();
void lose_device();

// Work that is held back so that the next piece of work of its stream overtakes it (wrong_stream_order).
void hold(cudaStream_t stream, std::function<cudaError_t()> work);
bool holds_for(cudaStream_t stream);
cudaError_t release_held();  // runs it, if there is any

bool capturing(cudaStream_t stream);

// Work that is held back goes first: before any call but those that give work to a stream, and those that have nothing
// to do with devices. The latter succeed on a device that was lost too.
enum class Order { any, of_stream, none };

// `pass` passes the call on as it is. The body is given the runtime's own function. It returns what the call returns.
template <typename Next, typename Pass, typename Body>
cudaError_t call(Next next, Order order, Pass&& pass, Body&& body) {
  if (next == nullptr) return cudaErrorSharedObjectSymbolNotFound;
  if (Within::now() || !any_injected()) return pass(next);
  const Within within;
  if (order != Order::none) {
    if (const cudaError_t gone = lost(); gone != cudaSuccess) return gone;
  }
  if (order == Order::any) {
    if (const cudaError_t error = release_held(); error != cudaSuccess) return reported(error);
  }
  return reported(body(next));
}

// In FRONT(function, order, (arguments), { ... }) the body is the rest of the function, and `next` the one behind it.
#define FRONT(name, order, arguments, ...)                                                               \
  return ::interposer::call(                                                                             \
      NEXT(name), ::interposer::Order::order, [&](auto* next) -> cudaError_t { return next arguments; }, \
      [&]([[maybe_unused]] auto* next)->cudaError_t __VA_ARGS__)

}  // namespace interposer
