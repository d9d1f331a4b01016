#include "code.h"

#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <vector>

#include "simcuda_image.h"

namespace simcuda::driver {

namespace {

// The folder with the compiler (harness/sim/simcuda/device_code/toolkit.py).
constexpr const char* toolkit_variable = "SIMCUDA_TOOLKIT";

void say(const std::string& text) { std::fprintf(stderr, "Simulated CUDA: %s\n", text.c_str()); }

// Returns a name for a file with this content.
std::string digest(std::string_view bytes) {
  std::uint64_t first = 0xcbf29ce484222325, second = 0x84222325cbf29ce4;  // FNV-1a
  for (const char byte : bytes) {
    first = (first ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
    second = (second ^ static_cast<unsigned char>(byte)) * 0x10000000233;
  }
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(first),
                static_cast<unsigned long long>(second));
  return text;
}

// Returns the variables of this process for the compiler, which must not run on simulated devices itself.
std::vector<char*> environment() {
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "LD_PRELOAD=", 11) != 0) variables.push_back(*variable);
  }
  variables.push_back(nullptr);
  return variables;
}

bool compile(const std::string& toolkit, const std::string& fields, const std::string& library) {
  const std::string request = library + "." + std::to_string(getpid()) + ".request";
  std::ofstream(request, std::ios::binary) << fields;
  const std::string program = toolkit + "/bin/nvcc";
  const char* const arguments[] = {program.c_str(), "--simcuda-module", request.c_str(), library.c_str(), nullptr};
  pid_t child = 0;
  const int error =
      posix_spawn(&child, program.c_str(), nullptr, nullptr, const_cast<char* const*>(arguments), environment().data());
  int status = 0;
  if (error == 0) {
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  } else {
    say("the compiler " + program + " cannot be run: " + std::strerror(error));
  }
  unlink(request.c_str());
  return error == 0 && access(library.c_str(), R_OK) == 0;
}

std::string temporary_name() {
  const char* const folder = std::getenv("TMPDIR");
  return std::string(folder != nullptr && *folder != 0 ? folder : "/tmp") + "/simcuda-module-XXXXXX";
}

// Returns a folder in which the library of a module can be made: that of the toolkit, or a temporary one if this user
// cannot write there.
std::string folder_for(const std::string& toolkit) {
  std::string folder = toolkit + "/modules";
  if (access(folder.c_str(), W_OK) == 0) return folder;
  folder = temporary_name();
  if (mkdtemp(folder.data()) == nullptr) say("a temporary folder cannot be made: " + std::string(std::strerror(errno)));
  return folder;
}

const SimcudaModule* open_library(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    say(std::string("code of a module cannot be loaded: ") + dlerror());
    return nullptr;
  }
  return static_cast<const SimcudaModule*>(dlsym(library, "simcuda_module"));
}

// Each module has variables of its own, but a file is loaded once per process.
const SimcudaModule* open_copy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::string name = temporary_name();
  const int copy = mkstemp(name.data());
  if (copy < 0) return nullptr;
  const bool written = write(copy, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  const auto* const module = written ? open_library(name.c_str()) : nullptr;
  unlink(name.c_str());
  close(copy);
  return module;
}

}  // namespace

CUresult Code::load(const void* image, std::unique_ptr<Code>& code) {
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto* const text = static_cast<const char*>(image);
  if (!image::is_elf(image) && std::string_view(text, strnlen(text, 4096)).find(".version") == std::string_view::npos) {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  const std::string fields = image::fields_of(image);
  if (fields.empty()) {
    say("a module is refused (CUDA_ERROR_NOT_SUPPORTED): it is code for a GPU without its source; only what this "
        "simulation's NVRTC or nvcc has compiled can run here");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const char* const toolkit = std::getenv(toolkit_variable);
  if (toolkit == nullptr || *toolkit == 0) {
    say(std::string("a module is refused (CUDA_ERROR_NOT_SUPPORTED): ") + toolkit_variable +
        ", which `harness sim env` sets, is missing");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const std::string name = "/" + digest(fields) + ".so";
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::string folder = std::string(toolkit) + "/modules";
  if (access((folder + name).c_str(), R_OK) != 0) {
    folder = folder_for(toolkit);
    if (!compile(toolkit, fields, folder + name)) return CUDA_ERROR_NOT_SUPPORTED;
  }
  const SimcudaModule* module = open_library((folder + name).c_str());
  if (module != nullptr && module->variable_count > 0) module = open_copy(folder + name);
  if (folder != std::string(toolkit) + "/modules") {  // the file stays as long as it is loaded
    unlink((folder + name).c_str());
    rmdir(folder.c_str());
  }
  if (module == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  for (unsigned i = 0; i < module->kernel_count; ++i) simcudaAddKernel(&module->kernels[i], &module->kernels[i]);
  for (unsigned i = 0; i < module->variable_count; ++i) {
    simcudaAddVariable(module->variables[i].address, module->variables[i].size);
  }
  code.reset(new Code(*module));
  return CUDA_SUCCESS;
}

const SimcudaKernel* Code::kernel(std::string_view name) const {
  for (unsigned i = 0; i < module_->kernel_count; ++i) {
    if (name == module_->kernels[i].name) return &module_->kernels[i];
  }
  return nullptr;
}

const SimcudaVariable* Code::variable(std::string_view name) const {
  for (unsigned i = 0; i < module_->variable_count; ++i) {
    if (name == module_->variables[i].name) return &module_->variables[i];
  }
  return nullptr;
}

}  // namespace simcuda::driver
