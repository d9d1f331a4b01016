// Code for GPUs, which nothing here can run: modules, libraries, functions, linking, launches, tensor maps. The
// functions return CUDA_ERROR_NOT_SUPPORTED. They exist because libraries and programs look them up before they use
// them.
//
// cuda.h is not included: it declares the functions with their arguments, all of which are ignored here.

#define UNSUPPORTED(name)                                              \
  extern "C" __attribute__((visibility("default"))) int name() {       \
    return simcuda::driver::ready() ? not_supported : not_initialized; \
  }

namespace simcuda::driver {
bool ready();  // driver.h
}

namespace {
constexpr int not_initialized = 3, not_supported = 801;
}

UNSUPPORTED(cuModuleLoad)
UNSUPPORTED(cuModuleLoadData)
UNSUPPORTED(cuModuleLoadDataEx)
UNSUPPORTED(cuModuleLoadFatBinary)
UNSUPPORTED(cuModuleUnload)
UNSUPPORTED(cuModuleGetFunction)
UNSUPPORTED(cuModuleGetGlobal_v2)
UNSUPPORTED(cuModuleGetLoadingMode)
UNSUPPORTED(cuModuleGetFunctionCount)
UNSUPPORTED(cuModuleEnumerateFunctions)

UNSUPPORTED(cuLibraryLoadData)
UNSUPPORTED(cuLibraryLoadFromFile)
UNSUPPORTED(cuLibraryUnload)
UNSUPPORTED(cuLibraryGetKernel)
UNSUPPORTED(cuLibraryGetModule)
UNSUPPORTED(cuLibraryGetGlobal)
UNSUPPORTED(cuLibraryGetManaged)
UNSUPPORTED(cuLibraryGetUnifiedFunction)
UNSUPPORTED(cuLibraryGetKernelCount)
UNSUPPORTED(cuLibraryEnumerateKernels)

UNSUPPORTED(cuKernelGetFunction)
UNSUPPORTED(cuKernelGetAttribute)
UNSUPPORTED(cuKernelSetAttribute)
UNSUPPORTED(cuKernelSetCacheConfig)
UNSUPPORTED(cuKernelGetName)
UNSUPPORTED(cuKernelGetParamInfo)
UNSUPPORTED(cuKernelGetLibrary)

UNSUPPORTED(cuLinkCreate_v2)
UNSUPPORTED(cuLinkAddData_v2)
UNSUPPORTED(cuLinkAddFile_v2)
UNSUPPORTED(cuLinkComplete)
UNSUPPORTED(cuLinkDestroy)

UNSUPPORTED(cuFuncGetAttribute)
UNSUPPORTED(cuFuncSetAttribute)
UNSUPPORTED(cuFuncSetCacheConfig)
UNSUPPORTED(cuFuncSetSharedMemConfig)
UNSUPPORTED(cuFuncGetModule)
UNSUPPORTED(cuFuncGetName)
UNSUPPORTED(cuFuncGetParamInfo)
UNSUPPORTED(cuFuncIsLoaded)
UNSUPPORTED(cuFuncLoad)

UNSUPPORTED(cuLaunchKernel)
UNSUPPORTED(cuLaunchKernelEx)
UNSUPPORTED(cuLaunchCooperativeKernel)
UNSUPPORTED(cuLaunchCooperativeKernelMultiDevice)

UNSUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
UNSUPPORTED(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
UNSUPPORTED(cuOccupancyMaxPotentialBlockSize)
UNSUPPORTED(cuOccupancyMaxPotentialBlockSizeWithFlags)
UNSUPPORTED(cuOccupancyAvailableDynamicSMemPerBlock)
UNSUPPORTED(cuOccupancyMaxActiveClusters)
UNSUPPORTED(cuOccupancyMaxPotentialClusterSize)

UNSUPPORTED(cuTensorMapEncodeTiled)
UNSUPPORTED(cuTensorMapEncodeIm2col)
UNSUPPORTED(cuTensorMapEncodeIm2colWide)
UNSUPPORTED(cuTensorMapReplaceAddress)

UNSUPPORTED(cuGetExportTable)

UNSUPPORTED(cuMulticastAddDevice)
UNSUPPORTED(cuMulticastBindMem)
UNSUPPORTED(cuMulticastBindAddr)
UNSUPPORTED(cuMulticastCreate)
UNSUPPORTED(cuMulticastUnbind)
UNSUPPORTED(cuMulticastGetGranularity)
