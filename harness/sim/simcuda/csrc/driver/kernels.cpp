// Kernels: their attributes, launches and occupancy, and their nodes in graphs. CUDA Driver API, "Execution Control",
// "Occupancy".

#include <cstddef>
#include <cstring>
#include <vector>

#include "driver.h"
#include "modules.h"

using namespace simcuda::driver;

namespace {

// Calls the body with a kernel.
template <typename Body>
CUresult with_kernel(const void* handle, Body&& body) {
  const SimcudaKernel* const kernel = kernel_of(handle);
  return kernel != nullptr ? body(*kernel) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult attribute_of(const void* handle, CUfunction_attribute attribute, int* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_kernel(handle, [&](const SimcudaKernel& kernel) {
    cudaFuncAttributes all{};
    if (const CUresult error = result(cudaFuncGetAttributes(&all, &kernel)); error != CUDA_SUCCESS) return error;
    switch (attribute) {
      case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = all.maxThreadsPerBlock;
        break;
      case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
        *value = static_cast<int>(all.sharedSizeBytes);
        break;
      case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = all.numRegs;
        break;
      case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = all.binaryVersion;
        break;
      case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = all.maxDynamicSharedSizeBytes;
        break;
      case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        *value = all.preferredShmemCarveout;
        break;
      default:
        if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
        *value = 0;
    }
    return CUDA_SUCCESS;
  });
}

CUresult set_attribute(const void* handle, CUfunction_attribute attribute, int value) {
  return with_kernel(handle, [&](const SimcudaKernel& kernel) {
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
      return result(cudaFuncSetAttribute(&kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, value));
    }
    return attribute < CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
  });
}

CUresult name_of(const char** name, const void* handle) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_kernel(handle, [&](const SimcudaKernel& kernel) {
    *name = kernel.name;
    return CUDA_SUCCESS;
  });
}

// As the compiler lays out the parameters: one after the other, aligned.
std::vector<std::size_t> offsets(const SimcudaKernel& kernel) {
  std::vector<std::size_t> places;
  std::size_t end = 0;
  for (unsigned i = 0; i < kernel.count; ++i) {
    const std::size_t alignment = kernel.parameters[i].alignment;
    places.push_back((end + alignment - 1) / alignment * alignment);
    end = places.back() + kernel.parameters[i].size;
  }
  return places;
}

CUresult parameter_of(const void* handle, size_t index, size_t* offset, size_t* size) {
  if (offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_kernel(handle, [&](const SimcudaKernel& kernel) {
    if (index >= kernel.count) return CUDA_ERROR_INVALID_VALUE;
    *offset = offsets(kernel)[index];
    if (size != nullptr) *size = kernel.parameters[index].size;
    return CUDA_SUCCESS;
  });
}

// Returns the addresses of the arguments, which `extra` may give as one buffer.
CUresult arguments_of(const SimcudaKernel& kernel, void** given, void** extra, std::vector<void*>& arguments) {
  if (given != nullptr || extra == nullptr) {
    if (given == nullptr && kernel.count > 0) return CUDA_ERROR_INVALID_VALUE;
    arguments.assign(given, given + kernel.count);
    return CUDA_SUCCESS;
  }
  char* buffer = nullptr;
  std::size_t bytes = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<char*>(extra[1]);
    if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<std::size_t*>(extra[1]);
  }
  const auto places = offsets(kernel);
  for (unsigned i = 0; i < kernel.count; ++i) {
    if (buffer == nullptr || places[i] + kernel.parameters[i].size > bytes) return CUDA_ERROR_INVALID_VALUE;
    arguments.push_back(buffer + places[i]);
  }
  return CUDA_SUCCESS;
}

// The driver has no error of its own for a wrong configuration.
CUresult launch_result(cudaError_t error) {
  return result(error == cudaErrorInvalidConfiguration ? cudaErrorInvalidValue : error);
}

CUresult launch(const void* handle, dim3 grid, dim3 block, unsigned shared, CUstream stream, void** given, void** extra,
                bool cooperative = false) {
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return with_kernel(handle, [&](const SimcudaKernel& kernel) {
    std::vector<void*> arguments;
    if (const CUresult wrong = arguments_of(kernel, given, extra, arguments); wrong != CUDA_SUCCESS) return wrong;
    const auto call = cooperative ? &cudaLaunchCooperativeKernel : &cudaLaunchKernel;
    return launch_result(call(&kernel, grid, block, arguments.data(), shared, stream));
  });
}

CUresult add_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count, const void* handle,
                  dim3 grid, dim3 block, unsigned shared, void** given, void** extra) {
  return with_kernel(handle, [&](const SimcudaKernel& kernel) {
    std::vector<void*> arguments;
    if (const CUresult wrong = arguments_of(kernel, given, extra, arguments); wrong != CUDA_SUCCESS) return wrong;
    cudaKernelNodeParams params{};
    params.func = const_cast<SimcudaKernel*>(&kernel);
    params.gridDim = grid;
    params.blockDim = block;
    params.sharedMemBytes = shared;
    params.kernelParams = arguments.data();
    return launch_result(cudaGraphAddKernelNode(node, graph, needs, count, &params));
  });
}

}  // namespace

DRIVER_API CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  DRIVER_CALL({
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_kernel(kernel, [&](const SimcudaKernel&) {
      *function = reinterpret_cast<CUfunction>(kernel);
      return CUDA_SUCCESS;
    });
  });
}
DRIVER_API CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice) {
  DRIVER_CALL({ return attribute_of(kernel, attribute, value); });
}
DRIVER_API CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice) {
  DRIVER_CALL({ return set_attribute(kernel, attribute, value); });
}
DRIVER_API CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache, CUdevice) {
  DRIVER_CALL({ return with_kernel(kernel, [](const SimcudaKernel&) { return CUDA_SUCCESS; }); });
}
DRIVER_API CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  DRIVER_CALL({ return name_of(name, kernel); });
}
DRIVER_API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  DRIVER_CALL({ return parameter_of(kernel, index, offset, size); });
}

DRIVER_API CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  DRIVER_CALL({ return attribute_of(function, attribute, value); });
}
DRIVER_API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  DRIVER_CALL({ return set_attribute(function, attribute, value); });
}
DRIVER_API CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache) {
  DRIVER_CALL({ return with_kernel(function, [](const SimcudaKernel&) { return CUDA_SUCCESS; }); });
}
DRIVER_API CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig) {
  DRIVER_CALL({ return with_kernel(function, [](const SimcudaKernel&) { return CUDA_SUCCESS; }); });
}
DRIVER_API CUresult cuFuncGetName(const char** name, CUfunction function) {
  DRIVER_CALL({ return name_of(name, function); });
}
DRIVER_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  DRIVER_CALL({ return parameter_of(function, index, offset, size); });
}
DRIVER_API CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  DRIVER_CALL({
    if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_kernel(function, [&](const SimcudaKernel&) {
      *state = CU_FUNCTION_LOADING_STATE_LOADED;
      return CUDA_SUCCESS;
    });
  });
}
DRIVER_API CUresult cuFuncLoad(CUfunction function) {
  DRIVER_CALL({ return with_kernel(function, [](const SimcudaKernel&) { return CUDA_SUCCESS; }); });
}

DRIVER_API CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                   CUstream stream, void** arguments, void** extra) {
  DRIVER_CALL({
    return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, arguments, extra);
  });
}
DRIVER_API CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments,
                                     void** extra) {
  DRIVER_CALL({
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const CUlaunchAttribute& attribute = config->attrs[i];
      const auto& cluster = attribute.value.clusterDim;
      if ((attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && attribute.value.cooperative != 0) ||
          (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION && cluster.x * cluster.y * cluster.z > 1)) {
        return CUDA_ERROR_NOT_SUPPORTED;
      }
    }
    return launch(function, {config->gridDimX, config->gridDimY, config->gridDimZ},
                  {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes, config->hStream,
                  arguments, extra);
  });
}
// Its blocks run one after the other, so a barrier across them is refused when a kernel reaches it.
DRIVER_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                              unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                              CUstream stream, void** arguments) {
  DRIVER_CALL({
    return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, arguments, nullptr,
                  true);
  });
}

DRIVER_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int size,
                                                                         size_t shared, unsigned flags) {
  DRIVER_CALL({
    return with_kernel(function, [&](const SimcudaKernel& kernel) {
      return result(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, &kernel, size, shared, flags));
    });
  });
}
DRIVER_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int size,
                                                                size_t shared) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, size, shared, 0);
}
DRIVER_API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* size, CUfunction function,
                                                              CUoccupancyB2DSize shared_of, size_t shared, int limit,
                                                              unsigned flags) {
  DRIVER_CALL({
    if (grid == nullptr || size == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_kernel(function, [&](const SimcudaKernel& kernel) {
      cudaFuncAttributes all{};
      if (const CUresult error = result(cudaFuncGetAttributes(&all, &kernel)); error != CUDA_SUCCESS) return error;
      const int most = limit > 0 && limit < all.maxThreadsPerBlock ? limit : all.maxThreadsPerBlock;
      int best = 0, processors = 0;
      for (int threads = most; threads > 0; threads -= threads % 32 == 0 ? 32 : threads % 32) {
        int blocks = 0;
        const size_t needed = shared_of != nullptr ? shared_of(threads) : shared;
        cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, &kernel, threads, needed, flags);
        if (blocks * threads <= best) continue;
        best = blocks * threads;
        *size = threads;
        *grid = blocks;
      }
      cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, simcudaCurrentDevice());
      *grid *= processors;
      return best > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
  });
}
DRIVER_API CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* size, CUfunction function,
                                                     CUoccupancyB2DSize shared_of, size_t shared, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, size, function, shared_of, shared, limit, 0);
}
DRIVER_API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction function, int blocks, int size) {
  DRIVER_CALL({
    return with_kernel(function, [&](const SimcudaKernel& kernel) {
      return result(cudaOccupancyAvailableDynamicSMemPerBlock(bytes, &kernel, blocks, size));
    });
  });
}
DRIVER_API CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig*) {
  DRIVER_CALL({
    return with_kernel(function, [&](const SimcudaKernel& kernel) {
      return result(cudaOccupancyMaxActiveClusters(clusters, &kernel, nullptr));
    });
  });
}
DRIVER_API CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction function, const CUlaunchConfig*) {
  DRIVER_CALL({
    return with_kernel(function, [&](const SimcudaKernel& kernel) {
      return result(cudaOccupancyMaxPotentialClusterSize(size, &kernel, nullptr));
    });
  });
}

DRIVER_API CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                         const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  DRIVER_CALL({
    if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return add_node(node, graph, needs, count, params->func, {params->gridDimX, params->gridDimY, params->gridDimZ},
                    {params->blockDimX, params->blockDimY, params->blockDimZ}, params->sharedMemBytes,
                    params->kernelParams, params->extra);
  });
}
DRIVER_API CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                            const CUDA_KERNEL_NODE_PARAMS* params) {
  DRIVER_CALL({
    if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const void* const handle = params->func != nullptr ? static_cast<const void*>(params->func) : params->kern;
    return add_node(node, graph, needs, count, handle, {params->gridDimX, params->gridDimY, params->gridDimZ},
                    {params->blockDimX, params->blockDimY, params->blockDimZ}, params->sharedMemBytes,
                    params->kernelParams, params->extra);
  });
}
