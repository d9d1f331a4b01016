#include "real.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace simcuda::nvrtc {

namespace {

void* open_library() {
  const char* const path = std::getenv("SIMCUDA_NVRTC");
  if (path == nullptr || *path == 0) {
    std::fprintf(stderr,
                 "Simulated CUDA: there is no NVRTC: SIMCUDA_NVRTC, which `harness sim env` sets, is missing\n");
    return nullptr;
  }
  // NVRTC opens its builtins by name alone, and finds them only if they are there already.
  const std::string folder = std::string(path).substr(0, std::string(path).rfind('/'));
  glob_t found{};
  if (glob((folder + "/libnvrtc-builtins.so.*").c_str(), 0, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
  }
  globfree(&found);
  // This library has the same names, and comes first in the process.
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) std::fprintf(stderr, "Simulated CUDA: NVRTC cannot be opened: %s\n", dlerror());
  return library;
}

}  // namespace

void* real(const char* name) {
  static void* const library = open_library();
  void* const function = library != nullptr ? dlsym(library, name) : nullptr;
  if (library != nullptr && function == nullptr) {
    std::fprintf(stderr, "Simulated CUDA: this NVRTC has no %s\n", name);
  }
  return function;
}

}  // namespace simcuda::nvrtc
