// What needs a GPU: linking of code for it, tensor maps, multicast objects. The functions return
// CUDA_ERROR_NOT_SUPPORTED. They exist because libraries and programs look them up before they use them.
//
// cuda.h is not included: it declares the functions with their arguments, all of which are ignored here.

#include <atomic>
#include <cstdio>

// The first call of each function says on stderr who refuses it: the program may report its error without the name.
#define REFUSED(name, why)                                                                                \
  extern "C" __attribute__((visibility("default"))) int name() {                                          \
    static std::atomic<bool> said{false};                                                                 \
    if (!simcuda::driver::ready()) return not_initialized;                                                \
    if (!said.exchange(true)) {                                                                           \
      std::fprintf(stderr, "Simulated CUDA: " #name " is refused (CUDA_ERROR_NOT_SUPPORTED): " why "\n"); \
    }                                                                                                     \
    return not_supported;                                                                                 \
  }
#define UNSUPPORTED(name) REFUSED(name, "it needs a GPU")

namespace simcuda::driver {
bool ready();  // driver.h
}

namespace {
constexpr int not_initialized = 3, not_supported = 801;
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

REFUSED(cuGetExportTable,
        "programs that have CUDA's runtime linked in cannot run, such as CuPy and cuda.bindings.runtime")

UNSUPPORTED(cuLaunchCooperativeKernelMultiDevice)

UNSUPPORTED(cuMulticastAddDevice)
UNSUPPORTED(cuMulticastBindMem)
UNSUPPORTED(cuMulticastBindAddr)
UNSUPPORTED(cuMulticastCreate)
UNSUPPORTED(cuMulticastUnbind)
UNSUPPORTED(cuMulticastGetGranularity)
