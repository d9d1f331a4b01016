// The interface: kernel launches, and queries of kernels and variables in modules.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "call.h"
#include "capture.h"
#include "context.h"
#include "device.h"
#include "kernels.h"
#include "properties.h"
#include "stream.h"

using namespace simcuda;

namespace {

struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};

thread_local std::vector<Configuration> configurations;

constexpr unsigned most_threads = 1024, most_blocks_in_x = 0x7fffffff;

// How many blocks of a kernel run on a multiprocessor at once, as on an H100. Registers are not counted.
int resident_blocks(unsigned threads, std::size_t shared) {
  constexpr std::size_t most = 32, most_resident_threads = 2048, warp = 32, all_shared = 233472, own_shared = 1024;
  if (threads == 0 || threads > most_threads) return 0;
  std::size_t blocks = std::min(most, most_resident_threads / ((threads + warp - 1) / warp * warp));
  if (shared > 0) blocks = std::min(blocks, all_shared / (shared + own_shared));
  return static_cast<int>(blocks);
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t shared,
                   cudaStream_t handle, bool cooperative = false) {
  check(function != nullptr, cudaErrorInvalidDeviceFunction);
  const auto stream = find_stream(handle);
  // CUDA Programming Guide, "Stream and Event Behavior": a launch fails if the stream does not belong to the current
  // device.
  check(&stream->device() == &current_device(), cudaErrorInvalidResourceHandle);
  const auto filled = [](dim3 size) { return size.x > 0 && size.y > 0 && size.z > 0; };
  check(filled(grid) && filled(block) && grid.x <= most_blocks_in_x && grid.y <= 65535 && grid.z <= 65535 &&
            block.z <= 64 && static_cast<unsigned long long>(block.x) * block.y * block.z <= most_threads,
        cudaErrorInvalidConfiguration);
  check(shared <= 232448);
  if (cooperative) {
    const unsigned long long blocks = static_cast<unsigned long long>(grid.x) * grid.y * grid.z;
    const int of_processor =
        resident_blocks(block.x * block.y * block.z, shared + kernel_limits(function).static_shared);
    const int processors = attribute_of(stream->device(), cudaDevAttrMultiProcessorCount);
    check(blocks <= static_cast<unsigned long long>(of_processor) * static_cast<unsigned>(processors),
          cudaErrorCooperativeLaunchTooLarge);
  }
  auto operation = kernel_operation(function, grid, block, shared, arguments);
  if (!operation) return cudaErrorNotSupported;
  return submit(*stream, std::move(*operation));
}

}  // namespace

SIMCUDA_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

SIMCUDA_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (configurations.empty()) return fail(cudaErrorMissingConfiguration);
  const Configuration& last = configurations.back();
  *grid = last.grid;
  *block = last.block;
  *shared = last.shared;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  configurations.pop_back();
  return cudaSuccess;
}

// A kernel's handle is the address of its host function.
SIMCUDA_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

SIMCUDA_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                              size_t shared, cudaStream_t stream) {
  SIMCUDA_CALL(device, { return launch(kernel, grid, block, arguments, shared, stream); });
}

SIMCUDA_EXPORT cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                                   size_t shared, cudaStream_t stream) {
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared, stream ? stream : cudaStreamPerThread);
}

SIMCUDA_EXPORT cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                            size_t shared, cudaStream_t stream) {
  SIMCUDA_CALL(device, { return launch(function, grid, block, arguments, shared, stream); });
}

SIMCUDA_EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                                       size_t shared, cudaStream_t stream) {
  SIMCUDA_CALL(device, { return launch(function, grid, block, arguments, shared, stream, true); });
}

SIMCUDA_EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                               void** arguments) {
  SIMCUDA_CALL(device, {
    check(config != nullptr);
    const auto* const attributes = config->attrs;
    const bool cooperative =
        std::any_of(attributes, attributes + config->numAttrs, [](const cudaLaunchAttribute& attribute) {
          return attribute.id == cudaLaunchAttributeCooperative && attribute.val.cooperative != 0;
        });
    return launch(function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream,
                  cooperative);
  });
}

SIMCUDA_EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  SIMCUDA_CALL(device, {
    check(attributes != nullptr);
    const KernelLimits limits = kernel_limits(function);
    *attributes = {};
    attributes->maxThreadsPerBlock = static_cast<int>(limits.threads);
    attributes->numRegs = static_cast<int>(limits.registers);
    attributes->sharedSizeBytes = limits.static_shared;
    attributes->ptxVersion = attributes->binaryVersion = 90;
    attributes->maxDynamicSharedSizeBytes = static_cast<int>(limits.dynamic_shared);
    attributes->preferredShmemCarveout = -1;
  });
}

SIMCUDA_EXPORT cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  SIMCUDA_CALL(device, {
    kernel_name(function);
    check(attribute >= cudaFuncAttributeMaxDynamicSharedMemorySize && attribute < cudaFuncAttributeMax);
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
      check(value >= 0);
      set_most_dynamic_shared(function, static_cast<unsigned>(value));
    }
  });
}

SIMCUDA_EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute, int value,
                                                           int) {
  return cudaFuncSetAttribute(kernel, attribute, value);
}

SIMCUDA_EXPORT cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
  SIMCUDA_CALL(device, { kernel_name(function); });
}

SIMCUDA_EXPORT cudaError_t cudaFuncGetName(const char** name, const void* function) {
  SIMCUDA_CALL(device, {
    check(name != nullptr);
    *name = kernel_name(function).c_str();
  });
}

SIMCUDA_EXPORT cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  SIMCUDA_CALL(device, {
    check(kernel != nullptr);
    kernel_name(function);
    *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  });
}

SIMCUDA_EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t* result, const void* symbol) {
  SIMCUDA_CALL(device, {
    check(result != nullptr);
    kernel_name(symbol);
    *result = static_cast<cudaFunction_t>(const_cast<void*>(symbol));
  });
}

SIMCUDA_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int size,
                                                                                  size_t shared, unsigned) {
  SIMCUDA_CALL(device, {
    check(blocks != nullptr && size > 0);
    *blocks = resident_blocks(static_cast<unsigned>(size), shared);
  });
}

SIMCUDA_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int size,
                                                                         size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, size, shared, 0);
}

SIMCUDA_EXPORT cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void*, int blocks, int) {
  SIMCUDA_CALL(device, {
    check(bytes != nullptr && blocks > 0);
    *bytes = std::min<size_t>(232448, 233472 / static_cast<size_t>(blocks) - 1024);
  });
}

SIMCUDA_EXPORT cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void*, const cudaLaunchConfig_t*) {
  SIMCUDA_CALL(device, {
    check(size != nullptr);
    *size = 8;
  });
}

SIMCUDA_EXPORT cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  SIMCUDA_CALL(device, {
    check(clusters != nullptr);
    *clusters = 16;
  });
}

SIMCUDA_EXPORT cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  SIMCUDA_CALL(device, {
    check(address != nullptr);
    *address = find_variable(symbol).address;
  });
}

SIMCUDA_EXPORT cudaError_t cudaGetSymbolSize(size_t* size, const void* symbol) {
  SIMCUDA_CALL(device, {
    check(size != nullptr);
    *size = find_variable(symbol).size;
  });
}

// Modules compiled at run time: nothing here could run their kernels.

SIMCUDA_EXPORT cudaError_t cudaLibraryLoadData(cudaLibrary_t*, const void*, cudaJitOption*, void**, unsigned,
                                               cudaLibraryOption*, void**, unsigned) {
  SIMCUDA_CALL(device, { return cudaErrorNotSupported; });
}

SIMCUDA_EXPORT cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t*, const char*, cudaJitOption*, void**, unsigned,
                                                   cudaLibraryOption*, void**, unsigned) {
  SIMCUDA_CALL(device, { return cudaErrorNotSupported; });
}

SIMCUDA_EXPORT cudaError_t cudaLibraryUnload(cudaLibrary_t) {
  SIMCUDA_CALL(device, { return cudaErrorInvalidResourceHandle; });
}

SIMCUDA_EXPORT cudaError_t cudaLibraryGetKernel(cudaKernel_t*, cudaLibrary_t, const char*) {
  SIMCUDA_CALL(device, { return cudaErrorInvalidResourceHandle; });
}

SIMCUDA_EXPORT cudaError_t cudaLibraryGetKernelCount(unsigned*, cudaLibrary_t) {
  SIMCUDA_CALL(device, { return cudaErrorInvalidResourceHandle; });
}

SIMCUDA_EXPORT cudaError_t cudaLibraryEnumerateKernels(cudaKernel_t*, unsigned, cudaLibrary_t) {
  SIMCUDA_CALL(device, { return cudaErrorInvalidResourceHandle; });
}

SIMCUDA_EXPORT cudaError_t cudaLibraryGetGlobal(void**, size_t*, cudaLibrary_t, const char*) {
  SIMCUDA_CALL(device, { return cudaErrorInvalidResourceHandle; });
}

SIMCUDA_EXPORT cudaError_t cudaLibraryGetManaged(void**, size_t*, cudaLibrary_t, const char*) {
  SIMCUDA_CALL(device, { return cudaErrorInvalidResourceHandle; });
}

SIMCUDA_EXPORT cudaError_t cudaLibraryGetUnifiedFunction(void**, cudaLibrary_t, const char*) {
  SIMCUDA_CALL(device, { return cudaErrorInvalidResourceHandle; });
}

// The functions that the compiler inserts into programs. Names and types are those of CUDA's crt/host_runtime.h.

SIMCUDA_EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handles[4096];
  static std::atomic<unsigned> next{0};
  return &handles[next.fetch_add(1) % 4096];  // callers do not dereference the handle
}

SIMCUDA_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
SIMCUDA_EXPORT void __cudaUnregisterFatBinary(void**) {}
SIMCUDA_EXPORT char __cudaInitModule(void**) { return 1; }

SIMCUDA_EXPORT void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, uint3*, uint3*,
                                           dim3*, dim3*, int*) {
  note_function(function, name);
}

SIMCUDA_EXPORT void __cudaRegisterVar(void**, char* variable, char*, const char*, int, size_t size, int, int) {
  note_variable(variable, size);
}

SIMCUDA_EXPORT void __cudaRegisterManagedVar(void**, void** variable, char*, const char*, int, size_t size, int, int) {
  note_variable(variable, size);
}
