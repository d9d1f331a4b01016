#include "error.h"

namespace simcuda {

namespace {

thread_local cudaError_t recorded = cudaSuccess;

struct Row {
  int number;
  const char* name;
  const char* text;
};

constexpr Row rows[] = {
#define ERROR(number, name, text) {number, #name, text},
#include "errors.def"
#undef ERROR
};

const Row* row(cudaError_t error) {
  for (const Row& one : rows) {
    if (one.number == static_cast<int>(error)) return &one;
  }
  return nullptr;
}

}  // namespace

const char* error_name(cudaError_t error) {
  const Row* const found = row(error);
  return found ? found->name : "unrecognized error code";
}

const char* error_text(cudaError_t error) {
  const Row* const found = row(error);
  return found ? found->text : "unrecognized error code";
}

cudaError_t fail(cudaError_t error) {
  if (error != cudaSuccess) recorded = error;
  return error;
}

cudaError_t last_error() { return recorded; }

cudaError_t take_last_error() {
  const cudaError_t error = recorded;
  recorded = cudaSuccess;
  return error;
}

}  // namespace simcuda
