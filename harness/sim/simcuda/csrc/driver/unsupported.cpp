// What needs a GPU: linking of code for it, tensor maps, multicast objects. The functions return
// CUDA_ERROR_NOT_SUPPORTED. They exist because libraries and programs look them up before they use them.
//
// cuda.h is not included: it declares the functions with their arguments, all of which are ignored here.

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstring>

namespace simcuda::driver {
bool ready();  // driver.h
}

namespace {

constexpr int not_initialized = 3, not_supported = 801;

// The first call of each function says on stderr who refuses it: the program may report its error without the name.
int refuse(std::atomic<bool>& said, const char* name, const char* why) {
  if (!simcuda::driver::ready()) return not_initialized;
  if (!said.exchange(true)) {
    std::fprintf(stderr, "Simulated CUDA: %s is refused (CUDA_ERROR_NOT_SUPPORTED): %s\n", name, why);
  }
  return not_supported;
}

// Whether the code at this address is that of NVIDIA's NVRTC.
bool is_nvrtc(const void* address) {
  Dl_info found{};
  return dladdr(address, &found) != 0 && found.dli_fname != nullptr &&
         std::strstr(found.dli_fname, "/libnvrtc.so") != nullptr;
}

}  // namespace

#define UNSUPPORTED(name)                                        \
  extern "C" __attribute__((visibility("default"))) int name() { \
    static std::atomic<bool> said{false};                        \
    return refuse(said, #name, "it needs a GPU");                \
  }

UNSUPPORTED(cuLinkCreate_v2)
UNSUPPORTED(cuLinkAddData_v2)
UNSUPPORTED(cuLinkAddFile_v2)
UNSUPPORTED(cuLinkComplete)
UNSUPPORTED(cuLinkDestroy)

UNSUPPORTED(cuTensorMapEncodeTiled)
UNSUPPORTED(cuTensorMapEncodeIm2col)
UNSUPPORTED(cuTensorMapEncodeIm2colWide)
UNSUPPORTED(cuTensorMapReplaceAddress)

// A runtime that is linked in needs the tables. NVRTC asks for one before it compiles, and goes on without it.
extern "C" __attribute__((visibility("default"))) int cuGetExportTable() {
  static std::atomic<bool> said{false};
  if (is_nvrtc(__builtin_return_address(0))) return not_supported;
  return refuse(said, "cuGetExportTable",
                "programs that have CUDA's runtime linked in cannot run, such as CuPy and cuda.bindings.runtime");
}

UNSUPPORTED(cuLaunchCooperativeKernelMultiDevice)

UNSUPPORTED(cuMulticastAddDevice)
UNSUPPORTED(cuMulticastBindMem)
UNSUPPORTED(cuMulticastBindAddr)
UNSUPPORTED(cuMulticastCreate)
UNSUPPORTED(cuMulticastUnbind)
UNSUPPORTED(cuMulticastGetGranularity)
