// CUDA's errors: their names and texts, the last one of each thread, and the exception that stands for one.
#pragma once

#include <driver_types.h>

#include <exception>

namespace simcuda {

const char* error_name(cudaError_t error);
const char* error_text(cudaError_t error);

// Thrown within the runtime; `call` makes a return value of it. Conditions that programs poll for (cudaErrorNotReady)
// are returned instead.
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

// Notes an error, if it is one, as the calling thread's last, and returns it.
cudaError_t fail(cudaError_t error);
cudaError_t last_error();
cudaError_t take_last_error();  // forgets it

}  // namespace simcuda
