// CUDA's errors: their names and texts, the last error of each thread, and the exception for an error.
#pragma once

#include <driver_types.h>

#include <exception>

namespace simcuda {

const char* error_name(cudaError_t error);
const char* error_text(cudaError_t error);

// Thrown within the runtime; `call` converts it to a return value. Results that programs poll for (cudaErrorNotReady)
// are returned, not thrown.
class Error : public std::exception {
 public:
  explicit Error(cudaError_t code) : code(code) {}
  const char* what() const noexcept override { return error_text(code); }
  const cudaError_t code;
};

inline void check(bool condition, cudaError_t otherwise = cudaErrorInvalidValue) {
  if (!condition) throw Error(otherwise);
}
inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw Error(error);
}

// Sets the calling thread's last error unless `error` is cudaSuccess, and returns `error`.
cudaError_t fail(cudaError_t error);
cudaError_t last_error();
cudaError_t take_last_error();  // and resets it

}  // namespace simcuda
