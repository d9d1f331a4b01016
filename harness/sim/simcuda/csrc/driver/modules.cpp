// Modules and libraries. CUDA Driver API, "Module Management" and "Library Management". A module and a library are the
// same here, and so are a function and a kernel: a handle of the runtime.

#include "modules.h"

#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "code.h"

namespace simcuda::driver {

namespace {

struct Known {
  std::mutex mutex;
  std::map<const void*, std::unique_ptr<Code>> modules;
  std::map<const void*, const void*> kernels;  // by kernel: its module
};

Known& known() {
  static auto* const known = new Known;
  return *known;
}

CUresult load(const void* image, void** handle) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::unique_ptr<Code> code;
  const CUresult result = Code::load(image, code);
  if (result != CUDA_SUCCESS) return result;
  const SimcudaModule& module = code->module();
  const void* const key = code.get();
  const std::lock_guard lock(known().mutex);
  for (unsigned i = 0; i < module.kernel_count; ++i) known().kernels[&module.kernels[i]] = key;
  known().modules[key] = std::move(code);
  *handle = const_cast<void*>(key);
  return CUDA_SUCCESS;
}

CUresult load_file(const char* name, void** handle) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(name, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  const std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return load(image.c_str(), handle);
}

// Its kernels stay launchable, since queued work and graphs may need them.
CUresult unload(const void* handle) {
  const std::lock_guard lock(known().mutex);
  return known().modules.erase(handle) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// Calls the body with a module.
template <typename Body>
CUresult with_code(const void* handle, Body&& body) {
  const std::lock_guard lock(known().mutex);
  const auto found = known().modules.find(handle);
  return found == known().modules.end() ? CUDA_ERROR_INVALID_HANDLE : body(*found->second);
}

CUresult find_kernel(const void* handle, const char* name, const void** kernel) {
  if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_code(handle, [&](const Code& code) {
    *kernel = code.kernel(name);
    return *kernel != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
  });
}

CUresult find_variable(const void* handle, const char* name, CUdeviceptr* address, size_t* bytes) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_code(handle, [&](const Code& code) {
    const SimcudaVariable* const variable = code.variable(name);
    if (variable == nullptr) return CUDA_ERROR_NOT_FOUND;
    if (address != nullptr) *address = reinterpret_cast<CUdeviceptr>(variable->address);
    if (bytes != nullptr) *bytes = variable->size;
    return CUDA_SUCCESS;
  });
}

CUresult count_kernels(const void* handle, unsigned* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_code(handle, [&](const Code& code) {
    *count = code.module().kernel_count;
    return CUDA_SUCCESS;
  });
}

template <typename Handle>
CUresult list_kernels(const void* handle, Handle* kernels, unsigned count) {
  if (kernels == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_code(handle, [&](const Code& code) {
    for (unsigned i = 0; i < count && i < code.module().kernel_count; ++i) {
      kernels[i] = reinterpret_cast<Handle>(const_cast<SimcudaKernel*>(&code.module().kernels[i]));
    }
    return CUDA_SUCCESS;
  });
}

CUresult module_of(const void* kernel, void** module) {
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(known().mutex);
  const auto found = known().kernels.find(kernel);
  if (found == known().kernels.end()) return CUDA_ERROR_INVALID_HANDLE;
  *module = const_cast<void*>(found->second);
  return CUDA_SUCCESS;
}

template <typename Handle>
void** out(Handle* handle) {
  return reinterpret_cast<void**>(handle);
}
template <typename Handle>
const void** out_kernel(Handle* handle) {
  return const_cast<const void**>(reinterpret_cast<void**>(handle));
}

}  // namespace

const SimcudaKernel* kernel_of(const void* handle) {
  const std::lock_guard lock(known().mutex);
  return known().kernels.count(handle) > 0 ? static_cast<const SimcudaKernel*>(handle) : nullptr;
}

}  // namespace simcuda::driver

using namespace simcuda::driver;

#define CONTEXT_CALL(...)                                        \
  DRIVER_CALL({                                                  \
    if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT; \
    return __VA_ARGS__;                                          \
  })

DRIVER_API CUresult cuModuleLoad(CUmodule* module, const char* name) { CONTEXT_CALL(load_file(name, out(module))); }
DRIVER_API CUresult cuModuleLoadData(CUmodule* module, const void* image) { CONTEXT_CALL(load(image, out(module))); }
DRIVER_API CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  CONTEXT_CALL(load(image, out(module)));
}
DRIVER_API CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  CONTEXT_CALL(load(image, out(module)));
}
DRIVER_API CUresult cuModuleUnload(CUmodule module) { CONTEXT_CALL(unload(module)); }
DRIVER_API CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  CONTEXT_CALL(find_kernel(module, name, out_kernel(function)));
}
DRIVER_API CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  CONTEXT_CALL(find_variable(module, name, address, bytes));
}
DRIVER_API CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule module) {
  CONTEXT_CALL(count_kernels(module, count));
}
DRIVER_API CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule module) {
  CONTEXT_CALL(list_kernels(module, functions, count));
}

DRIVER_API CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                                      CUlibraryOption*, void**, unsigned) {
  DRIVER_CALL({ return load(image, out(library)); });
}
DRIVER_API CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* name, CUjit_option*, void**, unsigned,
                                          CUlibraryOption*, void**, unsigned) {
  DRIVER_CALL({ return load_file(name, out(library)); });
}
DRIVER_API CUresult cuLibraryUnload(CUlibrary library) {
  DRIVER_CALL({ return unload(library); });
}
DRIVER_API CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  DRIVER_CALL({ return find_kernel(library, name, out_kernel(kernel)); });
}
DRIVER_API CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  CONTEXT_CALL(module == nullptr ? CUDA_ERROR_INVALID_VALUE : with_code(library, [&](const Code&) {
    *module = reinterpret_cast<CUmodule>(library);
    return CUDA_SUCCESS;
  }));
}
DRIVER_API CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  CONTEXT_CALL(find_variable(library, name, address, bytes));
}
DRIVER_API CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  DRIVER_CALL({ return find_variable(library, name, address, bytes); });
}
DRIVER_API CUresult cuLibraryGetUnifiedFunction(void** function, CUlibrary library, const char* name) {
  DRIVER_CALL({
    if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_code(library, [](const Code&) { return CUDA_ERROR_NOT_FOUND; });
  });
}
DRIVER_API CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library) {
  DRIVER_CALL({ return count_kernels(library, count); });
}
DRIVER_API CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary library) {
  DRIVER_CALL({ return list_kernels(library, kernels, count); });
}

DRIVER_API CUresult cuFuncGetModule(CUmodule* module, CUfunction function) {
  DRIVER_CALL({ return module_of(function, out(module)); });
}
DRIVER_API CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
  DRIVER_CALL({ return module_of(kernel, out(library)); });
}
