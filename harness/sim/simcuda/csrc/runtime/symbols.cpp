// Copies to and from variables of modules.

#include <cuda_runtime_api.h>

#include "call.h"
#include "context.h"
#include "copy.h"
#include "kernels.h"

using namespace simcuda;

namespace {

void* place(const void* symbol, std::size_t bytes, std::size_t offset) {
  const Variable variable = find_variable(symbol);
  check(offset <= variable.size && bytes <= variable.size - offset);
  return static_cast<char*>(variable.address) + offset;
}

cudaError_t copy_to(const void* symbol, const void* from, std::size_t bytes, std::size_t offset, cudaMemcpyKind kind,
                    cudaStream_t stream, bool synchronous) {
  check(kind != cudaMemcpyDeviceToHost && kind != cudaMemcpyHostToHost, cudaErrorInvalidMemcpyDirection);
  return copy(*find_stream(stream), copy_of(place(symbol, bytes, offset), from, bytes), kind, synchronous);
}

cudaError_t copy_from(void* to, const void* symbol, std::size_t bytes, std::size_t offset, cudaMemcpyKind kind,
                      cudaStream_t stream, bool synchronous) {
  check(kind != cudaMemcpyHostToDevice && kind != cudaMemcpyHostToHost, cudaErrorInvalidMemcpyDirection);
  return copy(*find_stream(stream), copy_of(to, place(symbol, bytes, offset), bytes), kind, synchronous);
}

}  // namespace

SIMCUDA_EXPORT cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                                              cudaMemcpyKind kind) {
  SIMCUDA_CALL(device, { return copy_to(symbol, from, bytes, offset, kind, nullptr, true); });
}

SIMCUDA_EXPORT cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes, size_t offset,
                                                   cudaMemcpyKind kind, cudaStream_t stream) {
  SIMCUDA_CALL(device, { return copy_to(symbol, from, bytes, offset, kind, stream, false); });
}

SIMCUDA_EXPORT cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                                cudaMemcpyKind kind) {
  SIMCUDA_CALL(device, { return copy_from(to, symbol, bytes, offset, kind, nullptr, true); });
}

SIMCUDA_EXPORT cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset,
                                                     cudaMemcpyKind kind, cudaStream_t stream) {
  SIMCUDA_CALL(device, { return copy_from(to, symbol, bytes, offset, kind, stream, false); });
}
