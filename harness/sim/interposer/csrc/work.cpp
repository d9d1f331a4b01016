#include "work.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "../../simcuda/csrc/include/simcuda.h"
#include "../../simcuda/csrc/include/simcuda_shared.h"
#include "front.h"

using namespace interposer;

namespace interposer {

namespace {

constexpr std::chrono::milliseconds slowness{2};

// Whether the first work of the latest capture is still to come, and is to be dropped or doubled.
std::atomic<bool> drops_next{false}, doubles_next{false};

void never_end(void*) {
  for (;;) pause();
}

cudaError_t give_to_capture(const std::function<cudaError_t()>& now) {
  if (drops_next.exchange(false)) return cudaSuccess;
  const cudaError_t error = now();
  if (error != cudaSuccess || !doubles_next.exchange(false)) return error;
  return now();
}

cudaError_t in_wrong_order(cudaStream_t stream, const std::function<cudaError_t()>& now,
                           std::function<cudaError_t()> later) {
  if (holds_for(stream)) {
    const cudaError_t error = now(), of_other = release_held();
    return error != cudaSuccess ? error : of_other;
  }
  if (const cudaError_t error = release_held(); error != cudaSuccess) return error;
  if (!later || !strikes(Fault::wrong_stream_order)) return now();
  hold(stream, std::move(later));
  return cudaSuccess;
}

}  // namespace

void capture_begins() {
  drops_next = strikes(Fault::capture_drops_node);
  doubles_next = strikes(Fault::capture_doubles_node);
}

cudaError_t give(cudaStream_t stream, Work kind, const std::function<cudaError_t()>& now,
                 std::function<cudaError_t()> later) {
  if (capturing(stream)) return give_to_capture(now);
  if (kind == Work::kernel) {
    if (strikes(Fault::launch_kills_process)) std::abort();
    if (strikes(Fault::device_lost)) {
      lose_device();
      return refuse(cudaErrorLaunchFailure);
    }
    if (strikes(Fault::launch_lost)) return cudaSuccess;
    if (strikes(Fault::launch_hangs)) NEXT(cudaLaunchHostFunc)(stream, never_end, nullptr);
  }
  const cudaError_t error = injected(Fault::wrong_stream_order) ? in_wrong_order(stream, now, std::move(later)) : now();
  if (error == cudaSuccess && kind == Work::kernel && strikes(Fault::slow)) {
    NEXT(cudaLaunchHostFunc)(stream, [](void*) { std::this_thread::sleep_for(slowness); }, nullptr);
  }
  return error;
}

}  // namespace interposer

// A launch cannot be held back, because its arguments belong to the caller.
#define LAUNCH(name, stream, arguments) \
  FRONT(name, of_stream, arguments, { return give(stream, Work::kernel, [&] { return next arguments; }, nullptr); })

EXPORT cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** values, size_t shared,
                                    cudaStream_t stream) {
  LAUNCH(cudaLaunchKernel, stream, (function, grid, block, values, shared, stream));
}

EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** values,
                                               size_t shared, cudaStream_t stream) {
  LAUNCH(cudaLaunchCooperativeKernel, stream, (function, grid, block, values, shared, stream));
}

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** values) {
  LAUNCH(cudaLaunchKernelExC, config == nullptr ? nullptr : config->stream, (config, function, values));
}

// The compiler of CUDA 13 generates calls of this function for launches.
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** values, size_t shared,
                                      cudaStream_t stream) {
  LAUNCH(__cudaLaunchKernel, stream, (kernel, grid, block, values, shared, stream));
}

// A launch of the simulated CUDA's operators. A copy of its work allows running it later, or a second time.
EXPORT int simcudaLaunch(cudaStream_t stream, const char* name, std::function<void()>* work) {
  const auto pass = [&](auto* next) { return static_cast<cudaError_t>(next(stream, name, work)); };
  return call(NEXT(simcudaLaunch), Order::of_stream, pass, [&](auto* next) -> cudaError_t {
    const auto launch = [next, stream, name, copied = *work] {
      std::function<void()> own = copied;
      return static_cast<cudaError_t>(next(stream, name, &own));
    };
    return give(stream, Work::kernel, launch, launch);
  });
}

// A launch of the simulated NCCL.
EXPORT int simcudaLaunchShared(cudaStream_t stream, const char* name, std::function<void(std::function<void()>)>* begin,
                               std::function<void()>* work) {
  const auto pass = [&](auto* next) { return static_cast<cudaError_t>(next(stream, name, begin, work)); };
  return call(NEXT(simcudaLaunchShared), Order::of_stream, pass, [&](auto* next) -> cudaError_t {
    const auto launch = [next, stream, name, first = *begin, second = *work] {
      auto own_first = first;
      auto own_second = second;
      return static_cast<cudaError_t>(next(stream, name, &own_first, &own_second));
    };
    return give(stream, Work::kernel, launch, launch);
  });
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  FRONT(cudaStreamBeginCapture, any, (stream, mode), {
    const cudaError_t error = next(stream, mode);
    if (error == cudaSuccess) capture_begins();
    return error;
  });
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t* needs,
                                                 const cudaGraphEdgeData* edges, size_t count,
                                                 cudaStreamCaptureMode mode) {
  FRONT(cudaStreamBeginCaptureToGraph, any, (stream, graph, needs, edges, count, mode), {
    const cudaError_t error = next(stream, graph, needs, edges, count, mode);
    if (error == cudaSuccess) capture_begins();
    return error;
  });
}

// Held work must be given to the stream before it is destroyed.
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  FRONT(cudaStreamDestroy, any, (stream), { return next(stream); });
}
