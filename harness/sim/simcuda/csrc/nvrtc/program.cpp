// Programs: NVIDIA's NVRTC compiles them, and their images carry the source, from which the driver makes code for the
// host (simcuda_image.h).

#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "real.h"
#include "simcuda_image.h"

using namespace simcuda;
using namespace simcuda::nvrtc;

namespace {

struct Program {
  std::string fields;  // source, name, headers
  std::vector<std::string> expressions;
  std::string compiled;  // all fields, after a compilation
};

std::mutex mutex;

std::map<nvrtcProgram, Program>& programs() {
  static auto* const programs = new std::map<nvrtcProgram, Program>;
  return *programs;
}

// Returns what the two functions of an image return, or an empty string.
std::string image_of(nvrtcProgram program, const char* size_name, const char* name, nvrtcResult& result) {
  std::size_t bytes = 0;
  result = call(size_name, program, &bytes);
  if (result != success || bytes == 0) return {};
  std::string image(bytes, '\0');
  result = call(name, program, image.data());
  return result == success ? image : std::string();
}

std::string ptx_of(nvrtcProgram program, nvrtcResult& result) {
  std::string text = image_of(program, "nvrtcGetPTXSize", "nvrtcGetPTX", result);
  return text.substr(0, text.find('\0'));
}

std::string compiled_fields(nvrtcProgram program) {
  const std::lock_guard lock(mutex);
  const auto found = programs().find(program);
  return found == programs().end() ? std::string() : found->second.compiled;
}

std::string ptx_with_source(nvrtcProgram program, nvrtcResult& result) {
  const std::string text = ptx_of(program, result);
  const std::string fields = compiled_fields(program);
  return text.empty() || fields.empty() ? text : image::with_fields_text(text, fields);
}

std::string cubin_with_source(nvrtcProgram program, nvrtcResult& result) {
  const std::string cubin = image_of(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN", result);
  const std::string fields = compiled_fields(program);
  return cubin.empty() || fields.empty() ? cubin : image::with_fields_elf(cubin, fields);
}

}  // namespace

NVRTC_API nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name, int count,
                                         const char* const* headers, const char* const* names) {
  const nvrtcResult result = call("nvrtcCreateProgram", program, source, name, count, headers, names);
  if (result != success) return result;
  Program made;
  image::add_field(made.fields, "source", source);
  image::add_field(made.fields, "name", name != nullptr ? name : "default_program");
  for (int i = 0; i < count; ++i) {
    image::add_field(made.fields, "header-name", names[i]);
    image::add_field(made.fields, "header", headers[i]);
  }
  const std::lock_guard lock(mutex);
  programs()[*program] = std::move(made);
  return result;
}

NVRTC_API nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  if (program != nullptr) {
    const std::lock_guard lock(mutex);
    programs().erase(*program);
  }
  return call("nvrtcDestroyProgram", program);
}

NVRTC_API nvrtcResult nvrtcAddNameExpression(nvrtcProgram program, const char* expression) {
  const nvrtcResult result = call("nvrtcAddNameExpression", program, expression);
  if (result != success) return result;
  const std::lock_guard lock(mutex);
  programs()[program].expressions.emplace_back(expression);
  return result;
}

NVRTC_API nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  const nvrtcResult result = call("nvrtcCompileProgram", program, count, options);
  if (result != success) return result;
  std::string fields;
  for (int i = 0; i < count; ++i) image::add_field(fields, "option", options[i]);
  std::vector<std::string> expressions;
  {
    const std::lock_guard lock(mutex);
    expressions = programs()[program].expressions;
  }
  for (const std::string& expression : expressions) {
    const char* lowered = nullptr;
    if (call("nvrtcGetLoweredName", program, expression.c_str(), &lowered) != success) continue;
    image::add_field(fields, "expression", expression);
    image::add_field(fields, "lowered", lowered);
  }
  nvrtcResult ignored = success;
  image::add_field(fields, "ptx", ptx_of(program, ignored));
  const std::lock_guard lock(mutex);
  Program& own = programs()[program];
  own.compiled = own.fields + fields;
  return result;
}

NVRTC_API nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, std::size_t* size) {
  if (size == nullptr) return call("nvrtcGetPTXSize", program, size);
  nvrtcResult result = success;
  *size = ptx_with_source(program, result).size() + 1;
  return result;
}

NVRTC_API nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* ptx) {
  if (ptx == nullptr) return call("nvrtcGetPTX", program, ptx);
  nvrtcResult result = success;
  const std::string text = ptx_with_source(program, result);
  if (result == success) std::memcpy(ptx, text.c_str(), text.size() + 1);
  return result;
}

NVRTC_API nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* size) {
  if (size == nullptr) return call("nvrtcGetCUBINSize", program, size);
  nvrtcResult result = success;
  *size = cubin_with_source(program, result).size();
  return result;
}

NVRTC_API nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
  if (cubin == nullptr) return call("nvrtcGetCUBIN", program, cubin);
  nvrtcResult result = success;
  const std::string image = cubin_with_source(program, result);
  if (result == success) std::memcpy(cubin, image.data(), image.size());
  return result;
}
