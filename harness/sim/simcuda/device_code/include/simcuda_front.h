// Included before device code that is compiled for the host: CUDA's built-in names. CUDA C++ Programming Guide, "C++
// Language Extensions"; CUDA Math API.
//
// A program for NVRTC may define any name of the C++ library itself, so this file includes no header of it, and has
// functions of the compiler instead.
#pragma once

#if !defined(SIMCUDA_RTC)  // a program for nvcc has the C++ library
#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>
#endif

#include <vector_functions.h>

#include "simcuda_device.h"

// Keywords. The translation replaces `simcuda_shared` by a storage class, and `__noinline__`, which the C++ library has
// as an attribute.
#undef __device__
#undef __host__
#undef __global__
#undef __constant__
#undef __managed__
#undef __shared__
#define __device__
#define __host__
#define __global__
#define __constant__
#define __managed__
#define __shared__ simcuda_shared
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __nv_pure__
#define __inline_hint__

extern "C" {
#define SIMCUDA_THREAD(type, name, symbol) \
  extern __thread type name __asm__(#symbol) __attribute__((tls_model("initial-exec")))
SIMCUDA_THREAD(uint3, threadIdx, simcudaThreadIdx);
SIMCUDA_THREAD(uint3, blockIdx, simcudaBlockIdx);
SIMCUDA_THREAD(dim3, blockDim, simcudaBlockDim);
SIMCUDA_THREAD(dim3, gridDim, simcudaGridDim);
#undef SIMCUDA_THREAD
}
static const int warpSize = 32;
// What `extern __shared__` stands for.
extern "C" __thread char simcuda_dynamic_shared[] __attribute__((visibility("hidden")));

#define SIMCUDA_INLINE static inline __attribute__((always_inline, unused))

// Synchronisation.

SIMCUDA_INLINE void __syncthreads() { simcudaBarrier(0); }
SIMCUDA_INLINE int __syncthreads_count(int predicate) {
  return static_cast<int>(simcudaBarrier(predicate) & 0xffffffff);
}
SIMCUDA_INLINE int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
SIMCUDA_INLINE int __syncthreads_and(int predicate) {
  const unsigned long long found = simcudaBarrier(predicate);
  return (found & 0xffffffff) == found >> 32;
}
SIMCUDA_INLINE void __syncwarp(unsigned mask = 0xffffffff) { simcudaWarpExchange(simcuda_warp_sync, mask, 0, 0); }
SIMCUDA_INLINE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMCUDA_INLINE void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMCUDA_INLINE void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
SIMCUDA_INLINE void __nanosleep(unsigned) { simcudaYield(); }
__attribute__((noinline, unused)) static unsigned simcuda_active_mask() {
  return simcudaActiveMask(__builtin_return_address(0));
}
#define __activemask() simcuda_active_mask()

namespace simcuda_device {

SIMCUDA_INLINE unsigned lane() {
  const unsigned place = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  return place % 32;
}

template <typename T>
SIMCUDA_INLINE T shuffle(unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most eight bytes");
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  bits = simcudaWarpExchange(simcuda_warp_shuffle, mask, bits, source);
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
SIMCUDA_INLINE unsigned long long bits_of(T value) {
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  return bits;
}

__attribute__((noreturn, unused, noinline)) static void refuse(const char* what) {
  simcudaEndKernel(801, what);  // cudaErrorNotSupported
}

}  // namespace simcuda_device

template <typename T>
SIMCUDA_INLINE T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned lane = simcuda_device::lane(), size = static_cast<unsigned>(width);
  return simcuda_device::shuffle(mask, value, (lane & ~(size - 1)) | (static_cast<unsigned>(source) & (size - 1)));
}
template <typename T>
SIMCUDA_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = simcuda_device::lane(), size = static_cast<unsigned>(width);
  return simcuda_device::shuffle(mask, value, (lane & (size - 1)) >= delta ? lane - delta : lane);
}
template <typename T>
SIMCUDA_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = simcuda_device::lane(), size = static_cast<unsigned>(width);
  return simcuda_device::shuffle(mask, value, (lane & (size - 1)) + delta < size ? lane + delta : lane);
}
template <typename T>
SIMCUDA_INLINE T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const unsigned lane = simcuda_device::lane(), size = static_cast<unsigned>(width);
  const unsigned source = lane ^ static_cast<unsigned>(bits);
  return simcuda_device::shuffle(mask, value, source / size <= lane / size ? source : lane);
}
SIMCUDA_INLINE unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(simcudaWarpExchange(simcuda_warp_ballot, mask, predicate != 0, 0));
}
SIMCUDA_INLINE int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
SIMCUDA_INLINE int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <typename T>
SIMCUDA_INLINE unsigned __match_any_sync(unsigned mask, T value) {
  return static_cast<unsigned>(simcudaWarpExchange(simcuda_warp_match, mask, simcuda_device::bits_of(value), 0));
}
template <typename T>
SIMCUDA_INLINE unsigned __match_all_sync(unsigned mask, T value, int* all) {
  const unsigned same = __match_any_sync(mask, value);
  *all = __all_sync(mask, same == __ballot_sync(mask, 1));
  return *all ? same : 0;
}
#define SIMCUDA_REDUCE(name, type, kind)                                                        \
  SIMCUDA_INLINE type name(unsigned mask, type value) {                                         \
    return static_cast<type>(simcudaWarpExchange(kind, mask, static_cast<unsigned>(value), 0)); \
  }
SIMCUDA_REDUCE(__reduce_add_sync, unsigned, simcuda_warp_add)
SIMCUDA_REDUCE(__reduce_add_sync, int, simcuda_warp_add)
SIMCUDA_REDUCE(__reduce_min_sync, unsigned, simcuda_warp_min)
SIMCUDA_REDUCE(__reduce_min_sync, int, simcuda_warp_min_signed)
SIMCUDA_REDUCE(__reduce_max_sync, unsigned, simcuda_warp_max)
SIMCUDA_REDUCE(__reduce_max_sync, int, simcuda_warp_max_signed)
SIMCUDA_REDUCE(__reduce_and_sync, unsigned, simcuda_warp_and)
SIMCUDA_REDUCE(__reduce_or_sync, unsigned, simcuda_warp_or)
SIMCUDA_REDUCE(__reduce_xor_sync, unsigned, simcuda_warp_xor)
#undef SIMCUDA_REDUCE

#include "simcuda_atomics.h"
#include "simcuda_entries.h"
#include "simcuda_math.h"
#include "simcuda_ptx.h"

// The rest of the built-in functions.

SIMCUDA_INLINE void __trap() { simcudaEndKernel(719, "__trap() was called"); }  // cudaErrorLaunchFailure
SIMCUDA_INLINE void __brkpt() { __trap(); }
SIMCUDA_INLINE long long clock64() { return static_cast<long long>(__builtin_ia32_rdtsc()); }
template <typename T>
SIMCUDA_INLINE T __ldg(const T* address) {
  return *address;
}
template <typename T>
SIMCUDA_INLINE T __ldcg(const T* address) {
  return *address;
}
template <typename T>
SIMCUDA_INLINE T __ldca(const T* address) {
  return *address;
}
template <typename T>
SIMCUDA_INLINE T __ldcs(const T* address) {
  return *address;
}
template <typename T>
SIMCUDA_INLINE T __ldcv(const T* address) {
  return *static_cast<const volatile T*>(address);
}
template <typename T>
SIMCUDA_INLINE void __stcg(T* address, T value) {
  *address = value;
}
template <typename T>
SIMCUDA_INLINE void __stcs(T* address, T value) {
  *address = value;
}
template <typename T>
SIMCUDA_INLINE void __stwt(T* address, T value) {
  *address = value;
}
SIMCUDA_INLINE void __prof_trigger(int) {}
SIMCUDA_INLINE unsigned __isGlobal(const void*) { return 1; }

#if defined(SIMCUDA_RTC)
extern "C" {
int printf(const char*, ...);
void* malloc(size_t) noexcept;
void free(void*) noexcept;
void* memcpy(void*, const void*, size_t) noexcept;
void* memset(void*, int, size_t) noexcept;
long clock() noexcept;
}
#endif
#undef assert
#if defined(NDEBUG)
#define assert(condition) (static_cast<void>(0))
#else
#define assert(condition)                              \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : simcudaAssertFailed(#condition, __FILE__, __LINE__, __PRETTY_FUNCTION__))
#endif

// What a program asks the preprocessor about. Code for nvcc is that for the host, which kernels share here: with
// __CUDACC__, torch's headers need CUDA's C++ libraries, which no build of torch installs.
#if defined(SIMCUDA_RTC)
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDA_ARCH__ SIMCUDA_ARCHITECTURE
#else
#include "simcuda_launch.h"
#endif
