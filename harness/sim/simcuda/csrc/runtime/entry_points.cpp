// Entry points of the driver, for callers of the runtime. CUDA Runtime API, "Driver Entry Point Access".
//
// The driver, libcuda, depends on the runtime, so the runtime loads it only on request.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

#include "call.h"
#include "trace.h"

using namespace simcuda;

namespace {

using GetProcAddress = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

// Loads the driver from this library's folder; null if there is none.
GetProcAddress driver() {
  static const GetProcAddress found = [] {
    Dl_info self;
    void* library = nullptr;
    if (dladdr(reinterpret_cast<void*>(&driver), &self) != 0) {
      const std::string path = self.dli_fname;
      library = dlopen((path.substr(0, path.rfind('/') + 1) + "libcuda.so.1").c_str(), RTLD_NOW);
    }
    return library == nullptr ? nullptr : reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  }();
  return found;
}

cudaError_t find(const char* symbol, void** function, unsigned version, unsigned long long flags,
                 cudaDriverEntryPointQueryResult* status) {
  check(symbol != nullptr && *symbol != 0 && function != nullptr);
  check((flags & ~(unsigned long long)(cudaEnableLegacyStream | cudaEnablePerThreadDefaultStream)) == 0);
  check(flags != (cudaEnableLegacyStream | cudaEnablePerThreadDefaultStream));
  count("entry point", symbol);
  *function = nullptr;
  auto result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (driver() != nullptr) driver()(symbol, function, static_cast<int>(version), flags, &result);
  // An unknown symbol is not an error of the call if the caller asks for the status.
  if (status != nullptr) {
    *status = result == CU_GET_PROC_ADDRESS_SUCCESS            ? cudaDriverEntryPointSuccess
              : result == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND ? cudaDriverEntryPointSymbolNotFound
                                                               : cudaDriverEntryPointVersionNotSufficent;
    return cudaSuccess;
  }
  return result == CU_GET_PROC_ADDRESS_SUCCESS ? cudaSuccess : cudaErrorSymbolNotFound;
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                                            unsigned long long flags,
                                                            cudaDriverEntryPointQueryResult* status) {
  SIMCUDA_CALL(driver, { return find(symbol, function, version, flags, status); });
}

SIMCUDA_EXPORT cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                                   cudaDriverEntryPointQueryResult* status) {
  SIMCUDA_CALL(driver, { return find(symbol, function, CUDART_VERSION, flags, status); });
}
