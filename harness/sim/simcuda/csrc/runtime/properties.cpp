#include "properties.h"

#include <cstdio>
#include <cstring>

#include "../include/simcuda_machine.h"
#include "device.h"
#include "error.h"

namespace simcuda {

namespace {

constexpr int clock_khz = 1980000, memory_clock_khz = 2619000;
constexpr int last_attribute = 147;  // of CUDA 13.0
constexpr int device_numa = -1, host_numa = 0;

}  // namespace

cudaDeviceProp properties_of(const Device& device) {
  cudaDeviceProp p{};
  std::snprintf(p.name, sizeof p.name, "%s", machine::name);
  unsigned char uuid[16];
  machine::uuid_bytes(device.number, uuid);
  std::memcpy(p.uuid.bytes, uuid, sizeof uuid);
  p.totalGlobalMem = device.memory;
  p.sharedMemPerBlock = 49152;
  p.regsPerBlock = 65536;
  p.warpSize = 32;
  p.memPitch = 2147483647;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 65536;
  p.major = machine::compute_major;
  p.minor = machine::compute_minor;
  p.textureAlignment = 512;
  p.texturePitchAlignment = 32;
  p.multiProcessorCount = 132;
  p.canMapHostMemory = 1;
  p.maxTexture1D = 131072;
  p.maxTexture1DMipmap = 32768;
  p.maxTexture2D[0] = 131072;
  p.maxTexture2D[1] = 65536;
  p.maxTexture2DMipmap[0] = p.maxTexture2DMipmap[1] = 32768;
  p.maxTexture2DLinear[0] = 131072;
  p.maxTexture2DLinear[1] = 65000;
  p.maxTexture2DLinear[2] = 2097120;
  p.maxTexture2DGather[0] = p.maxTexture2DGather[1] = 32768;
  p.maxTexture3D[0] = p.maxTexture3D[1] = p.maxTexture3D[2] = 16384;
  p.maxTexture3DAlt[0] = p.maxTexture3DAlt[1] = 8192;
  p.maxTexture3DAlt[2] = 32768;
  p.maxTextureCubemap = 32768;
  p.maxTexture1DLayered[0] = 32768;
  p.maxTexture1DLayered[1] = 2048;
  p.maxTexture2DLayered[0] = p.maxTexture2DLayered[1] = 32768;
  p.maxTexture2DLayered[2] = 2048;
  p.maxTextureCubemapLayered[0] = 32768;
  p.maxTextureCubemapLayered[1] = 2046;
  p.maxSurface1D = 32768;
  p.maxSurface2D[0] = 131072;
  p.maxSurface2D[1] = 65536;
  p.maxSurface3D[0] = p.maxSurface3D[1] = p.maxSurface3D[2] = 16384;
  p.maxSurface1DLayered[0] = 32768;
  p.maxSurface1DLayered[1] = 2048;
  p.maxSurface2DLayered[0] = p.maxSurface2DLayered[1] = 32768;
  p.maxSurface2DLayered[2] = 2048;
  p.maxSurfaceCubemap = 32768;
  p.maxSurfaceCubemapLayered[0] = 32768;
  p.maxSurfaceCubemapLayered[1] = 2046;
  p.surfaceAlignment = 512;
  p.concurrentKernels = 1;
  p.pciBusID = machine::pci_bus(device.number);
  p.pciDeviceID = machine::pci_device;
  p.pciDomainID = machine::pci_domain;
  p.asyncEngineCount = 3;
  p.unifiedAddressing = 1;
  p.memoryBusWidth = 5120;
  p.l2CacheSize = 52428800;
  p.persistingL2CacheMaxSize = 32768000;
  p.maxThreadsPerMultiProcessor = 2048;
  p.streamPrioritiesSupported = 1;
  p.globalL1CacheSupported = p.localL1CacheSupported = 1;
  p.sharedMemPerMultiprocessor = 233472;
  p.regsPerMultiprocessor = 65536;
  p.managedMemory = 1;
  p.multiGpuBoardGroupID = device.number;
  p.concurrentManagedAccess = 1;
  p.computePreemptionSupported = 1;
  p.canUseHostPointerForRegisteredMem = 1;
  p.cooperativeLaunch = 1;
  p.sharedMemPerBlockOptin = 232448;
  p.maxBlocksPerMultiProcessor = 32;
  p.accessPolicyMaxWindowSize = 134213632;
  p.reservedSharedMemPerBlock = 1024;
  p.hostRegisterSupported = 1;
  p.hostRegisterReadOnlySupported = 1;
  p.memoryPoolsSupported = 1;
  p.memoryPoolSupportedHandleTypes = cudaMemHandleTypeNone;  // see pool_calls.cpp
  p.ipcEventSupported = 1;
  p.clusterLaunch = 1;
  p.unifiedFunctionPointers = 1;
#if CUDART_VERSION >= 13000
  p.deviceNumaId = device_numa;
  p.hostNumaId = host_numa;
#endif
  return p;
}

int attribute_of(const Device& device, cudaDeviceAttr attribute) {
  const cudaDeviceProp p = properties_of(device);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      return p.maxThreadsPerBlock;
    case cudaDevAttrMaxBlockDimX:
      return p.maxThreadsDim[0];
    case cudaDevAttrMaxBlockDimY:
      return p.maxThreadsDim[1];
    case cudaDevAttrMaxBlockDimZ:
      return p.maxThreadsDim[2];
    case cudaDevAttrMaxGridDimX:
      return p.maxGridSize[0];
    case cudaDevAttrMaxGridDimY:
      return p.maxGridSize[1];
    case cudaDevAttrMaxGridDimZ:
      return p.maxGridSize[2];
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return static_cast<int>(p.sharedMemPerBlock);
    case cudaDevAttrTotalConstantMemory:
      return static_cast<int>(p.totalConstMem);
    case cudaDevAttrWarpSize:
      return p.warpSize;
    case cudaDevAttrMaxPitch:
      return static_cast<int>(p.memPitch);
    case cudaDevAttrMaxRegistersPerBlock:
      return p.regsPerBlock;
    case cudaDevAttrClockRate:
      return clock_khz;
    case cudaDevAttrTextureAlignment:
      return static_cast<int>(p.textureAlignment);
    case cudaDevAttrGpuOverlap:
      return 1;
    case cudaDevAttrMultiProcessorCount:
      return p.multiProcessorCount;
    case cudaDevAttrCanMapHostMemory:
      return p.canMapHostMemory;
    case cudaDevAttrMaxTexture1DWidth:
      return p.maxTexture1D;
    case cudaDevAttrMaxTexture2DWidth:
      return p.maxTexture2D[0];
    case cudaDevAttrMaxTexture2DHeight:
      return p.maxTexture2D[1];
    case cudaDevAttrMaxTexture3DWidth:
    case cudaDevAttrMaxTexture3DHeight:
    case cudaDevAttrMaxTexture3DDepth:
      return p.maxTexture3D[0];
    case cudaDevAttrMaxTexture2DLayeredWidth:
    case cudaDevAttrMaxTexture2DLayeredHeight:
      return p.maxTexture2DLayered[0];
    case cudaDevAttrMaxTexture2DLayeredLayers:
      return p.maxTexture2DLayered[2];
    case cudaDevAttrSurfaceAlignment:
      return static_cast<int>(p.surfaceAlignment);
    case cudaDevAttrConcurrentKernels:
      return p.concurrentKernels;
    case cudaDevAttrPciBusId:
      return p.pciBusID;
    case cudaDevAttrPciDeviceId:
      return p.pciDeviceID;
    case cudaDevAttrMemoryClockRate:
      return memory_clock_khz;
    case cudaDevAttrGlobalMemoryBusWidth:
      return p.memoryBusWidth;
    case cudaDevAttrL2CacheSize:
      return p.l2CacheSize;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return p.maxThreadsPerMultiProcessor;
    case cudaDevAttrAsyncEngineCount:
      return p.asyncEngineCount;
    case cudaDevAttrUnifiedAddressing:
      return p.unifiedAddressing;
    case cudaDevAttrMaxTexture1DLayeredWidth:
      return p.maxTexture1DLayered[0];
    case cudaDevAttrMaxTexture1DLayeredLayers:
      return p.maxTexture1DLayered[1];
    case cudaDevAttrPciDomainId:
      return p.pciDomainID;
    case cudaDevAttrTexturePitchAlignment:
      return static_cast<int>(p.texturePitchAlignment);
    case cudaDevAttrMaxTextureCubemapWidth:
      return p.maxTextureCubemap;
    case cudaDevAttrMaxSurface1DWidth:
      return p.maxSurface1D;
    case cudaDevAttrMaxSurface2DWidth:
      return p.maxSurface2D[0];
    case cudaDevAttrMaxSurface2DHeight:
      return p.maxSurface2D[1];
    case cudaDevAttrComputeCapabilityMajor:
      return p.major;
    case cudaDevAttrComputeCapabilityMinor:
      return p.minor;
    case cudaDevAttrStreamPrioritiesSupported:
      return p.streamPrioritiesSupported;
    case cudaDevAttrGlobalL1CacheSupported:
      return p.globalL1CacheSupported;
    case cudaDevAttrLocalL1CacheSupported:
      return p.localL1CacheSupported;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return static_cast<int>(p.sharedMemPerMultiprocessor);
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return p.regsPerMultiprocessor;
    case cudaDevAttrManagedMemory:
      return p.managedMemory;
    case cudaDevAttrMultiGpuBoardGroupID:
      return p.multiGpuBoardGroupID;
    case cudaDevAttrSingleToDoublePrecisionPerfRatio:
      return 2;
    case cudaDevAttrConcurrentManagedAccess:
      return p.concurrentManagedAccess;
    case cudaDevAttrComputePreemptionSupported:
      return p.computePreemptionSupported;
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      return p.canUseHostPointerForRegisteredMem;
    case cudaDevAttrCooperativeLaunch:
      return p.cooperativeLaunch;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return static_cast<int>(p.sharedMemPerBlockOptin);
    case cudaDevAttrCanFlushRemoteWrites:
      return 1;
    case cudaDevAttrHostRegisterSupported:
      return p.hostRegisterSupported;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return p.maxBlocksPerMultiProcessor;
    case cudaDevAttrMaxPersistingL2CacheSize:
      return p.persistingL2CacheMaxSize;
    case cudaDevAttrMaxAccessPolicyWindowSize:
      return p.accessPolicyMaxWindowSize;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return static_cast<int>(p.reservedSharedMemPerBlock);
    case cudaDevAttrHostRegisterReadOnlySupported:
      return p.hostRegisterReadOnlySupported;
    case cudaDevAttrMemoryPoolsSupported:
      return p.memoryPoolsSupported;
    case cudaDevAttrMemoryPoolSupportedHandleTypes:
      return static_cast<int>(p.memoryPoolSupportedHandleTypes);
    case cudaDevAttrClusterLaunch:
      return p.clusterLaunch;
    case cudaDevAttrIpcEventSupport:
      return p.ipcEventSupported;
    case cudaDevAttrMemSyncDomainCount:
      return 4;
    case cudaDevAttrNumaId:
      return device_numa;
    case cudaDevAttrHostNumaId:
      return host_numa;
    default:
      check(static_cast<int>(attribute) > 0 && static_cast<int>(attribute) <= last_attribute);
      return 0;
  }
}

}  // namespace simcuda
