// An allocator for torch.cuda.memory.CUDAPluggableAllocator that uses the CUDA runtime and counts its requests.
// It uses the runtime that the process has loaded, so compiling it does not need CUDA.
#include <dlfcn.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace {
std::atomic<std::int64_t> requests{0}, returns{0}, held{0}, limit{-1}, refusals{0};

template <typename Function>
Function runtime(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}
}  // namespace

extern "C" {

void* counting_allocate(ssize_t size, int, void*) {
  const auto allocate = runtime<int (*)(void**, std::size_t)>("cudaMalloc");
  void* memory = nullptr;
  const std::int64_t then = held.load() + size;
  if (allocate == nullptr || (limit.load() >= 0 && then > limit.load()) || allocate(&memory, size) != 0) {
    ++refusals;
    return nullptr;
  }
  ++requests;
  held += size;
  return memory;
}

void counting_free(void* memory, ssize_t size, int, void*) {
  const auto free = runtime<int (*)(void*)>("cudaFree");
  ++returns;
  held -= size;
  if (free != nullptr) free(memory);
}

std::int64_t counting_requests() { return requests; }
std::int64_t counting_returns() { return returns; }
std::int64_t counting_held() { return held; }
std::int64_t counting_refusals() { return refusals; }
void counting_limit(std::int64_t bytes) { limit = bytes; }
int counting_has_runtime() { return dlsym(RTLD_DEFAULT, "cudaMalloc") != nullptr; }
}
