// The frame of each replaced CUDA runtime function: it may inject faults, and passes the call on to the runtime behind
// this library, NVIDIA's or the simulated one.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <type_traits>

#include "export.h"
#include "faults.h"

namespace interposer {

// Returns the function of this name in the library that is loaded behind this one; null if there is none.
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

// Marks calls that are not the program's: those of a runtime to its own interface, and those of this library.
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

// Makes an error that the runtime does not know the last error of the thread, and returns it.
cudaError_t refuse(cudaError_t error);
void forget_not_ready();  // clears the runtime's cudaErrorNotReady, which the program does not get
// Applies the injected faults of error reporting to the result of a call.
cudaError_t reported(cudaError_t error);
// Returns the error of the current device if it was lost, otherwise success.
cudaError_t lost();
void lose_device();

// Holds work back, so that the next work of its stream overtakes it (wrong_stream_order).
void hold(cudaStream_t stream, std::function<cudaError_t()> work);
bool holds_for(cudaStream_t stream);
cudaError_t release_held();  // runs the held work, if there is any

bool capturing(cudaStream_t stream);

// Held work runs before any call, except calls that give work to a stream (of_stream), and calls that do not use a
// device (none). The latter also succeed on a lost device.
enum class Order { any, of_stream, none };

// `pass` passes the call on unchanged. `body` gets the runtime's own function, and returns the result of the call.
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

// In FRONT(function, order, (arguments), { ... }) the braces are the rest of the function; `next` is the runtime's own.
#define FRONT(name, order, arguments, ...)                                                               \
  return ::interposer::call(                                                                             \
      NEXT(name), ::interposer::Order::order, [&](auto* next) -> cudaError_t { return next arguments; }, \
      [&]([[maybe_unused]] auto* next)->cudaError_t __VA_ARGS__)

}  // namespace interposer
