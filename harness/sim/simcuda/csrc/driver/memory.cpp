// Memory and addresses. CUDA Driver API, "Memory Management", "Virtual Memory Management", "Stream Ordered Memory
// Allocator", "Unified Addressing".

#include <cstring>

#include "driver.h"

using namespace simcuda::driver;

namespace {

constexpr auto default_kind = cudaMemcpyDefault;

template <typename To, typename From>
To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<To>(from);
}

CUresult fill(const char* name, CUdeviceptr address, size_t pitch, unsigned value, unsigned element, size_t width,
              size_t height, CUstream stream, bool synchronous) {
  return call(name, [&] {
    if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    return simcudaFill(pointer(address), pitch, value, element, width, height, stream, synchronous);
  });
}

}  // namespace

DRIVER_API CUresult cuMemGetInfo_v2(size_t* free, size_t* total) { IN_CONTEXT(cudaMemGetInfo(free, total)); }
DRIVER_API CUresult cuMemAlloc_v2(CUdeviceptr* to, size_t bytes) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  IN_CONTEXT(cudaMalloc(as<void**>(to), bytes));
}
DRIVER_API CUresult cuMemAllocPitch_v2(CUdeviceptr* to, size_t* pitch, size_t width, size_t height, unsigned) {
  IN_CONTEXT(cudaMallocPitch(as<void**>(to), pitch, width, height));
}
DRIVER_API CUresult cuMemAllocManaged(CUdeviceptr* to, size_t bytes, unsigned flags) {
  IN_CONTEXT(cudaMallocManaged(as<void**>(to), bytes, flags));
}
DRIVER_API CUresult cuMemFree_v2(CUdeviceptr address) { FORWARD(cudaFree(pointer(address))); }

DRIVER_API CUresult cuMemAllocHost_v2(void** to, size_t bytes) { IN_CONTEXT(cudaMallocHost(to, bytes)); }
DRIVER_API CUresult cuMemHostAlloc(void** to, size_t bytes, unsigned flags) {
  IN_CONTEXT(cudaHostAlloc(to, bytes, flags));
}
DRIVER_API CUresult cuMemFreeHost(void* address) { FORWARD(cudaFreeHost(address)); }
DRIVER_API CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  IN_CONTEXT(cudaHostRegister(address, bytes, flags));
}
DRIVER_API CUresult cuMemHostUnregister(void* address) { FORWARD(cudaHostUnregister(address)); }
DRIVER_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* to, void* address, unsigned flags) {
  FORWARD(cudaHostGetDevicePointer(as<void**>(to), address, flags));
}
DRIVER_API CUresult cuMemHostGetFlags(unsigned* flags, void* address) { FORWARD(cudaHostGetFlags(flags, address)); }

DRIVER_API CUresult cuMemAllocAsync(CUdeviceptr* to, size_t bytes, CUstream stream) {
  IN_CONTEXT(cudaMallocAsync(as<void**>(to), bytes, stream));
}
DRIVER_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr* to, size_t bytes, CUmemoryPool pool, CUstream stream) {
  IN_CONTEXT(cudaMallocFromPoolAsync(as<void**>(to), bytes, pool, stream));
}
DRIVER_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  FORWARD(cudaFreeAsync(pointer(address), stream));
}
DRIVER_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) { FORWARD(cudaMemPoolTrimTo(pool, keep)); }
DRIVER_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
  FORWARD(cudaMemPoolGetAttribute(pool, static_cast<cudaMemPoolAttr>(which), value));
}
DRIVER_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
  FORWARD(cudaMemPoolSetAttribute(pool, static_cast<cudaMemPoolAttr>(which), value));
}
DRIVER_API CUresult cuMemPoolDestroy(CUmemoryPool pool) { FORWARD(cudaMemPoolDestroy(pool)); }
DRIVER_API CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* props) {
  static_assert(sizeof(CUmemPoolProps) == sizeof(cudaMemPoolProps));
  FORWARD(cudaMemPoolCreate(pool, reinterpret_cast<const cudaMemPoolProps*>(props)));
}
DRIVER_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  FORWARD(cudaDeviceGetDefaultMemPool(pool, device));
}
DRIVER_API CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  FORWARD(cudaDeviceGetMemPool(pool, device));
}
DRIVER_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  FORWARD(cudaDeviceSetMemPool(device, pool));
}

DRIVER_API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  IN_CONTEXT(cudaMemcpy(pointer(to), pointer(from), bytes, default_kind));
}
DRIVER_API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  IN_CONTEXT(cudaMemcpyAsync(pointer(to), pointer(from), bytes, default_kind, stream));
}
DRIVER_API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  IN_CONTEXT(cudaMemcpy(pointer(to), from, bytes, cudaMemcpyHostToDevice));
}
DRIVER_API CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  IN_CONTEXT(cudaMemcpy(to, pointer(from), bytes, cudaMemcpyDeviceToHost));
}
DRIVER_API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  IN_CONTEXT(cudaMemcpy(pointer(to), pointer(from), bytes, cudaMemcpyDeviceToDevice));
}
DRIVER_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  IN_CONTEXT(cudaMemcpyAsync(pointer(to), from, bytes, cudaMemcpyHostToDevice, stream));
}
DRIVER_API CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  IN_CONTEXT(cudaMemcpyAsync(to, pointer(from), bytes, cudaMemcpyDeviceToHost, stream));
}
DRIVER_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  IN_CONTEXT(cudaMemcpyAsync(pointer(to), pointer(from), bytes, cudaMemcpyDeviceToDevice, stream));
}
DRIVER_API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                 size_t bytes) {
  FORWARD(cudaMemcpyPeer(pointer(to), device_of(to_context), pointer(from), device_of(from_context), bytes));
}
DRIVER_API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                      size_t bytes, CUstream stream) {
  FORWARD(
      cudaMemcpyPeerAsync(pointer(to), device_of(to_context), pointer(from), device_of(from_context), bytes, stream));
}

// The names contain the sizes of elements.
#define FILLS(bits, Value)                                                                                             \
  DRIVER_API CUresult cuMemsetD##bits##_v2(CUdeviceptr to, Value value, size_t count) {                                \
    return fill(__func__, to, 0, value, bits / 8, count, 1, nullptr, true);                                            \
  }                                                                                                                    \
  DRIVER_API CUresult cuMemsetD##bits##Async(CUdeviceptr to, Value value, size_t count, CUstream stream) {             \
    return fill(__func__, to, 0, value, bits / 8, count, 1, stream, false);                                            \
  }                                                                                                                    \
  DRIVER_API CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, Value value, size_t width, size_t height) { \
    return fill(__func__, to, pitch, value, bits / 8, width, height, nullptr, true);                                   \
  }                                                                                                                    \
  DRIVER_API CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, Value value, size_t width, size_t height, \
                                               CUstream stream) {                                                      \
    return fill(__func__, to, pitch, value, bits / 8, width, height, stream, false);                                   \
  }
FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)
#undef FILLS

#define SAME(name, parameters, ...)                                    \
  DRIVER_API CUresult cu##name parameters {                            \
    return call(__func__, [&] { return simcuda##name(__VA_ARGS__); }); \
  }
SAME(MemAddressReserve, (CUdeviceptr * to, size_t size, size_t alignment, CUdeviceptr wish, unsigned long long flags),
     to, size, alignment, wish, flags)
SAME(MemAddressFree, (CUdeviceptr address, size_t size), address, size)
SAME(MemCreate,
     (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp* prop, unsigned long long flags),
     handle, size, prop, flags)
SAME(MemRelease, (CUmemGenericAllocationHandle handle), handle)
SAME(MemMap,
     (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags),
     address, size, offset, handle, flags)
SAME(MemUnmap, (CUdeviceptr address, size_t size), address, size)
SAME(MemSetAccess, (CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count), address, size,
     access, count)
SAME(MemGetAccess, (unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address), flags, location,
     address)
SAME(MemGetAllocationGranularity,
     (size_t* size, const CUmemAllocationProp* prop, CUmemAllocationGranularity_flags option), size, prop, option)
SAME(MemGetAllocationPropertiesFromHandle, (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle), prop,
     handle)
SAME(MemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void* address), handle, address)
SAME(MemExportToShareableHandle,
     (void* shareable, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type, unsigned long long flags),
     shareable, handle, type, flags)
SAME(MemImportFromShareableHandle,
     (CUmemGenericAllocationHandle * handle, void* shareable, CUmemAllocationHandleType type), handle, shareable, type)
#undef SAME

DRIVER_API CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  FORWARD(cudaIpcGetMemHandle(reinterpret_cast<cudaIpcMemHandle_t*>(handle), pointer(address)));
}
DRIVER_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* to, CUipcMemHandle handle, unsigned flags) {
  cudaIpcMemHandle_t same;
  std::memcpy(&same, &handle, sizeof same);
  FORWARD(cudaIpcOpenMemHandle(as<void**>(to), same, flags));
}
DRIVER_API CUresult cuIpcCloseMemHandle(CUdeviceptr address) { FORWARD(cudaIpcCloseMemHandle(pointer(address))); }

DRIVER_API CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
  DRIVER_CALL({
    SimcudaAllocation found;
    if (!simcudaFindAllocation(pointer(address), &found)) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = reinterpret_cast<CUdeviceptr>(found.base);
    if (size != nullptr) *size = found.size;
    return CUDA_SUCCESS;
  });
}

namespace {

// Returns CUDA_ERROR_INVALID_VALUE for an unknown address.
CUresult attribute(void* value, CUpointer_attribute which, CUdeviceptr address) {
  SimcudaAllocation found;
  if (!simcudaFindAllocation(pointer(address), &found)) return CUDA_ERROR_INVALID_VALUE;
  const bool host = found.type == cudaMemoryTypeHost, managed = found.type == cudaMemoryTypeManaged;
  const auto give = [&](auto is) {
    std::memcpy(value, &is, sizeof is);
    return CUDA_SUCCESS;
  };
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give(context_of(found.device));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(static_cast<unsigned>(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give(address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return host || managed ? give(pointer(address)) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return give(0U);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return give(found.id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return give(static_cast<unsigned>(managed));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(found.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give(static_cast<unsigned>(!host && !managed && !found.from_pool && !found.mapped));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give(found.base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(found.size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return give(1U);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return give(static_cast<unsigned>(found.mapped ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return give(0U);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return give(static_cast<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return give(static_cast<CUmemoryPool>(nullptr));
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Writes the values that cuPointerGetAttributes returns for an unknown address. Each attribute has its own size.
void clear(void* value, CUpointer_attribute which) {
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      std::memset(value, 0, 8);
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = -2;
      break;
    default:
      std::memset(value, 0, 4);
  }
}

}  // namespace

DRIVER_API CUresult cuPointerGetAttribute(void* value, CUpointer_attribute which, CUdeviceptr address) {
  DRIVER_CALL({ return value == nullptr ? CUDA_ERROR_INVALID_VALUE : attribute(value, which, address); });
}

DRIVER_API CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* which, void** values,
                                           CUdeviceptr address) {
  DRIVER_CALL({
    if (which == nullptr || values == nullptr) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
      if (attribute(values[i], which[i], address) != CUDA_SUCCESS) clear(values[i], which[i]);
    }
    return CUDA_SUCCESS;
  });
}

DRIVER_API CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute which, CUdeviceptr address) {
  DRIVER_CALL({
    SimcudaAllocation found;
    const bool known = simcudaFindAllocation(pointer(address), &found) != 0;
    return value != nullptr && known && which == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ? CUDA_SUCCESS
                                                                                  : CUDA_ERROR_INVALID_VALUE;
  });
}
