// Reductions of arrays in each of NCCL's types, with NCCL's arithmetic: each step is rounded to the type.
#pragma once

#include <nccl.h>

#include <array>
#include <cstddef>

namespace simcuda::nccl {

std::size_t size_of(ncclDataType_t type);  // 0 for an unknown type
const char* name_of(ncclDataType_t type);

// The meaning of an ncclRedOp_t. As in NCCL's hostToDevRedOp (src/enqueue.cc), an average of floating-point numbers is
// a sum of inputs that are multiplied by 1/ranks, rounded to the type. An average of integers is a sum that is divided.
struct Reduction {
  enum class Kind { sum, product, maximum, minimum } kind = Kind::sum;
  bool multiplied = false;                // inputs are multiplied by the scalar
  bool divided = false;                   // the result is divided by the number of ranks
  std::array<unsigned char, 8> scalar{};  // in the type
  const void* scalar_address = nullptr;   // read when the collective begins, if the scalar is in device memory
};

Reduction built_in(ncclRedOp_t op, ncclDataType_t type, int ranks);

// `to` = `to` combined with `from`, element by element.
void combine(const Reduction& reduction, ncclDataType_t type, void* to, const void* from, std::size_t count);
void multiply(ncclDataType_t type, void* values, std::size_t count, const void* scalar);
void divide(ncclDataType_t type, void* values, std::size_t count, int by);

}  // namespace simcuda::nccl
