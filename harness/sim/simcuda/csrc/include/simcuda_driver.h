// What the simulated driver, libcuda, needs of the runtime beyond CUDA's own interface.
#pragma once

#include <cuda.h>
#include <driver_types.h>

#include <cstddef>

extern "C" {

// Of the visible devices; and the calling thread's. Unlike the functions of the runtime they are no calls of the
// program, of which profilers tell.
int simcudaDeviceCount();
int simcudaCurrentDevice();  // -1 if there is none

// The allocation that an address is in.
struct SimcudaAllocation {
  void* base;
  std::size_t size;
  cudaMemoryType type;
  int device;
  unsigned long long id;  // unlike that of any other allocation of the process
  int from_pool;          // made by cudaMallocAsync
  int mapped;             // made by cuMemMap
};
int simcudaFindAllocation(const void* address, SimcudaAllocation* allocation);  // 1, or 0 if there is none

// Virtual memory. Signatures and errors are those of the functions of the driver with cu instead of simcuda.
CUresult simcudaMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr wish,
                                  unsigned long long flags);
CUresult simcudaMemAddressFree(CUdeviceptr address, size_t size);
CUresult simcudaMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
                          unsigned long long flags);
CUresult simcudaMemRelease(CUmemGenericAllocationHandle handle);
CUresult simcudaMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags);
CUresult simcudaMemUnmap(CUdeviceptr address, size_t size);
CUresult simcudaMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc* access, size_t count);
CUresult simcudaMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address);
CUresult simcudaMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                            CUmemAllocationGranularity_flags option);
CUresult simcudaMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop, CUmemGenericAllocationHandle handle);
CUresult simcudaMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address);
CUresult simcudaMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType type, unsigned long long flags);
CUresult simcudaMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                             CUmemAllocationHandleType type);

// In stream order: writes `size` bytes (4 or 8) of a value, or waits until the value there compares as the flags say
// (CUstreamWaitValue_flags).
CUresult simcudaStreamWriteValue(cudaStream_t stream, void* address, unsigned long long value, unsigned size);
CUresult simcudaStreamWaitValue(cudaStream_t stream, const void* address, unsigned long long value, unsigned size,
                                unsigned flags);
// Fills `count` elements of 2 or 4 bytes.
CUresult simcudaFill(void* address, size_t pitch, unsigned value, unsigned element, size_t width, size_t height,
                     cudaStream_t stream, int synchronous);
}
