// The interface between the simulated driver, libcuda, and the runtime, beyond CUDA's own.
#pragma once

#include <cuda.h>
#include <driver_types.h>

#include <cstddef>

extern "C" {

// Return the number of visible devices, and the calling thread's current device. Unlike the runtime's functions, they
// are not calls of the program, so profilers do not report them.
int simcudaDeviceCount();
int simcudaCurrentDevice();  // -1 if there is none

// Whether the program itself has used a device through the runtime: its primary context is then current in each thread
// that has chosen none.
int simcudaRuntimeUsed();

// Ends the work of a device, frees its memory, and closes its context, which the next call that needs it opens again.
CUresult simcudaResetDevice(int device);

// The allocation that contains an address.
struct SimcudaAllocation {
  void* base;
  std::size_t size;
  cudaMemoryType type;
  int device;
  unsigned long long id;  // unique in the process
  int from_pool;          // made by cudaMallocAsync
  int mapped;             // made by cuMemMap
};
int simcudaFindAllocation(const void* address, SimcudaAllocation* allocation);  // 1, or 0 if there is none

// Virtual memory. Signatures and errors are those of the driver's functions with the prefix cu.
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

// In stream order: writes a value of `size` bytes (4 or 8), or waits until the value at the address satisfies the
// condition in the flags (CUstreamWaitValue_flags).
CUresult simcudaStreamWriteValue(cudaStream_t stream, void* address, unsigned long long value, unsigned size);
CUresult simcudaStreamWaitValue(cudaStream_t stream, const void* address, unsigned long long value, unsigned size,
                                unsigned flags);
// Fills elements of `element` bytes, 2 or 4.
CUresult simcudaFill(void* address, size_t pitch, unsigned value, unsigned element, size_t width, size_t height,
                     cudaStream_t stream, int synchronous);
}
