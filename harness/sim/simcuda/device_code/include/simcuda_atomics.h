// Atomic functions. Kernels of several streams run in threads of the host at the same time. CUDA C++ Programming Guide,
// "Atomic Functions".
#pragma once

namespace simcuda_device {

template <typename T, typename Change>
SIMCUDA_INLINE T change(T* address, Change next) {
  T before = *static_cast<volatile T*>(address), after;
  do {
    after = next(before);
  } while (!__atomic_compare_exchange(address, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  return before;
}

// Floating point numbers compare by their bits.
template <typename Bits, typename T, typename Change>
SIMCUDA_INLINE T change_bits(T* address, Change next) {
  const Bits before = change(reinterpret_cast<Bits*>(address), [&](Bits bits) {
    T value;
    __builtin_memcpy(&value, &bits, sizeof value);
    value = next(value);
    __builtin_memcpy(&bits, &value, sizeof value);
    return bits;
  });
  T value;
  __builtin_memcpy(&value, &before, sizeof value);
  return value;
}

// A thread that waits for another one of its block in a loop would never let it run.
SIMCUDA_INLINE void attempt(bool failed) {
  if (failed) simcudaYield();
}

}  // namespace simcuda_device

#define SIMCUDA_SCOPES(type, name, parameters, arguments)                \
  SIMCUDA_INLINE type name##_block parameters { return name arguments; } \
  SIMCUDA_INLINE type name##_system parameters { return name arguments; }
#define SIMCUDA_ATOMIC(type, name, expression)                               \
  SIMCUDA_INLINE type name(type* address, type value) { return expression; } \
  SIMCUDA_SCOPES(type, name, (type * address, type value), (address, value))
#define SIMCUDA_INTEGER(type)                                                                          \
  SIMCUDA_ATOMIC(type, atomicAdd, __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST))                \
  SIMCUDA_ATOMIC(type, atomicSub, __atomic_fetch_sub(address, value, __ATOMIC_SEQ_CST))                \
  SIMCUDA_ATOMIC(type, atomicExch, __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST))              \
  SIMCUDA_ATOMIC(type, atomicAnd, __atomic_fetch_and(address, value, __ATOMIC_SEQ_CST))                \
  SIMCUDA_ATOMIC(type, atomicOr, __atomic_fetch_or(address, value, __ATOMIC_SEQ_CST))                  \
  SIMCUDA_ATOMIC(type, atomicXor, __atomic_fetch_xor(address, value, __ATOMIC_SEQ_CST))                \
  SIMCUDA_ATOMIC(type, atomicMin,                                                                      \
                 simcuda_device::change(address, [&](type old) { return old < value ? old : value; })) \
  SIMCUDA_ATOMIC(type, atomicMax,                                                                      \
                 simcuda_device::change(address, [&](type old) { return old > value ? old : value; })) \
  SIMCUDA_COMPARE(type)
#define SIMCUDA_COMPARE(type)                                                                         \
  SIMCUDA_INLINE type atomicCAS(type* address, type compare, type value) {                            \
    const type wanted = compare;                                                                      \
    __atomic_compare_exchange_n(address, &compare, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    simcuda_device::attempt(compare != wanted);                                                       \
    return compare;                                                                                   \
  }                                                                                                   \
  SIMCUDA_SCOPES(type, atomicCAS, (type * address, type compare, type value), (address, compare, value))

SIMCUDA_INTEGER(int)
SIMCUDA_INTEGER(unsigned)
SIMCUDA_INTEGER(unsigned long long)
SIMCUDA_COMPARE(unsigned short)
SIMCUDA_ATOMIC(long long, atomicMin,
               simcuda_device::change(address, [&](long long old) { return old < value ? old : value; }))
SIMCUDA_ATOMIC(long long, atomicMax,
               simcuda_device::change(address, [&](long long old) { return old > value ? old : value; }))
SIMCUDA_ATOMIC(unsigned, atomicInc,
               simcuda_device::change(address, [&](unsigned old) { return old >= value ? 0 : old + 1; }))
SIMCUDA_ATOMIC(unsigned, atomicDec,
               simcuda_device::change(address, [&](unsigned old) { return old == 0 || old > value ? value : old - 1; }))
SIMCUDA_ATOMIC(float, atomicAdd, simcuda_device::change_bits<unsigned>(address, [&](float old) { return old + value; }))
SIMCUDA_ATOMIC(double, atomicAdd,
               simcuda_device::change_bits<unsigned long long>(address, [&](double old) { return old + value; }))
SIMCUDA_ATOMIC(float, atomicExch, simcuda_device::change_bits<unsigned>(address, [&](float) { return value; }))

#undef SIMCUDA_SCOPES
#undef SIMCUDA_ATOMIC
#undef SIMCUDA_INTEGER
#undef SIMCUDA_COMPARE
