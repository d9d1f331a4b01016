// Copies of rectangles and boxes, and hints about managed memory. CUDA Driver API, "Memory Management", "Unified
// Addressing".

#include "driver.h"

using namespace simcuda::driver;

namespace {

// One side of a copy. Arrays are not simulated.
struct Side {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  size_t x, y, z, pitch, height;

  bool valid() const { return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || unified(); }
  bool unified() const { return type == CU_MEMORYTYPE_UNIFIED; }
  cudaPitchedPtr memory() const {
    void* const start = type == CU_MEMORYTYPE_HOST ? const_cast<void*>(host) : pointer(device);
    return {start, pitch, pitch, height};
  }
  cudaPos place() const { return {x, y, z}; }
};

struct Copy {
  Side from, to;
  cudaExtent extent;

  bool empty() const { return extent.width == 0 || extent.height == 0 || extent.depth == 0; }
  CUresult check() const {
    if (from.type == CU_MEMORYTYPE_ARRAY || to.type == CU_MEMORYTYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
    if (!from.valid() || !to.valid()) return CUDA_ERROR_INVALID_VALUE;
    return current() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
  }
  cudaMemcpy3DParms parameters() const {
    cudaMemcpy3DParms result{};
    result.srcPtr = from.memory();
    result.srcPos = from.place();
    result.dstPtr = to.memory();
    result.dstPos = to.place();
    result.extent = extent;
    result.kind = cudaMemcpyDefault;
    return result;
  }
};

Copy copy_of(const CUDA_MEMCPY2D& c) {
  return {{c.srcMemoryType, c.srcHost, c.srcDevice, c.srcXInBytes, c.srcY, 0, c.srcPitch, c.Height},
          {c.dstMemoryType, c.dstHost, c.dstDevice, c.dstXInBytes, c.dstY, 0, c.dstPitch, c.Height},
          {c.WidthInBytes, c.Height, 1}};
}

Copy copy_of(const CUDA_MEMCPY3D& c) {
  return {{c.srcMemoryType, c.srcHost, c.srcDevice, c.srcXInBytes, c.srcY, c.srcZ, c.srcPitch, c.srcHeight},
          {c.dstMemoryType, c.dstHost, c.dstDevice, c.dstXInBytes, c.dstY, c.dstZ, c.dstPitch, c.dstHeight},
          {c.WidthInBytes, c.Height, c.Depth}};
}

template <typename Given>
CUresult copy(const char* name, const Given* given, CUstream stream, bool waits) {
  return call(name, [&] {
    if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Copy copy = copy_of(*given);
    if (const CUresult error = copy.check()) return error;
    if (copy.empty()) return CUDA_SUCCESS;
    const cudaMemcpy3DParms parameters = copy.parameters();
    return result(waits ? cudaMemcpy3D(&parameters) : cudaMemcpy3DAsync(&parameters, stream));
  });
}

CUmemLocation location_of(CUdevice device) {
  return {device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, device};
}

#if CUDART_VERSION >= 13000
cudaMemLocation place_of(CUmemLocation location) {
  cudaMemLocation place{};
  place.type = static_cast<cudaMemLocationType>(location.type);
  place.id = location.id;
  return place;
}
cudaError_t prefetch(void* address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream) {
  return cudaMemPrefetchAsync(address, bytes, place_of(location), flags, stream);
}
#else
int place_of(CUmemLocation location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : cudaCpuDeviceId;
}
cudaError_t prefetch(void* address, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream) {
  return flags != 0 ? cudaErrorInvalidValue : cudaMemPrefetchAsync(address, bytes, place_of(location), stream);
}
#endif

}  // namespace

DRIVER_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* c) { return copy(__func__, c, nullptr, true); }
DRIVER_API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* c) { return copy(__func__, c, nullptr, true); }
DRIVER_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* c, CUstream stream) {
  return copy(__func__, c, stream, false);
}
DRIVER_API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* c) { return copy(__func__, c, nullptr, true); }
DRIVER_API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* c, CUstream stream) {
  return copy(__func__, c, stream, false);
}

DRIVER_API CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                         const CUDA_MEMCPY3D* given, CUcontext) {
  DRIVER_CALL({
    if (given == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Copy copy = copy_of(*given);
    if (const CUresult error = copy.check()) return error;
    const cudaMemcpy3DParms parameters = copy.parameters();
    return result(cudaGraphAddMemcpyNode(node, graph, needs, count, &parameters));
  });
}

DRIVER_API CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  IN_CONTEXT(cudaMemAdvise(pointer(address), bytes, static_cast<cudaMemoryAdvise>(advice), place_of(location)));
}
DRIVER_API CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  return cuMemAdvise_v2(address, bytes, advice, location_of(device));
}
DRIVER_API CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned flags,
                                          CUstream stream) {
  IN_CONTEXT(prefetch(pointer(address), bytes, location, flags, stream));
}
DRIVER_API CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return cuMemPrefetchAsync_v2(address, bytes, location_of(device), 0, stream);
}
DRIVER_API CUresult cuMemRangeGetAttribute(void* value, size_t size, CUmem_range_attribute which, CUdeviceptr address,
                                           size_t bytes) {
  IN_CONTEXT(cudaMemRangeGetAttribute(value, size, static_cast<cudaMemRangeAttribute>(which), pointer(address), bytes));
}

// Pools by location: of devices only.
DRIVER_API CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  DRIVER_CALL({
    if (location == nullptr || location->type == CU_MEM_LOCATION_TYPE_INVALID ||
        type != CU_MEM_ALLOCATION_TYPE_PINNED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    return result(cudaDeviceGetDefaultMemPool(pool, location->id));
  });
}
DRIVER_API CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  DRIVER_CALL({
    if (location == nullptr || location->type == CU_MEM_LOCATION_TYPE_INVALID ||
        type != CU_MEM_ALLOCATION_TYPE_PINNED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    return result(cudaDeviceGetMemPool(pool, location->id));
  });
}
