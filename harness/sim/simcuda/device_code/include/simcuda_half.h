// The functions of __half and __nv_bfloat16 that NVIDIA's headers have for devices only: in float, and rounded.
#pragma once

#define SIMCUDA_HALF_ONE(type, pair, name, pair_name, to, from, expression) \
  SIMCUDA_INLINE type name(type value) {                                    \
    const float x = to(value);                                              \
    return from(expression);                                                \
  }                                                                         \
  SIMCUDA_INLINE pair pair_name(pair value) { return pair(name(value.x), name(value.y)); }

#define SIMCUDA_HALF_INTEGER(type, to, name, integer)                                                                \
  SIMCUDA_INLINE integer name##_rn(type x) { return simcuda_device::clamped<integer>(__builtin_nearbyintf(to(x))); } \
  SIMCUDA_INLINE integer name##_rd(type x) { return simcuda_device::clamped<integer>(__builtin_floorf(to(x))); }     \
  SIMCUDA_INLINE integer name##_ru(type x) { return simcuda_device::clamped<integer>(__builtin_ceilf(to(x))); }

#define SIMCUDA_HALF(type, pair, to, from, short_name)                                                                \
  SIMCUDA_HALF_ONE(type, pair, htrunc, h2trunc, to, from, __builtin_truncf(x))                                        \
  SIMCUDA_HALF_ONE(type, pair, hceil, h2ceil, to, from, __builtin_ceilf(x))                                           \
  SIMCUDA_HALF_ONE(type, pair, hfloor, h2floor, to, from, __builtin_floorf(x))                                        \
  SIMCUDA_HALF_ONE(type, pair, hrint, h2rint, to, from, __builtin_nearbyintf(x))                                      \
  SIMCUDA_HALF_ONE(type, pair, hsqrt, h2sqrt, to, from, __builtin_sqrtf(x))                                           \
  SIMCUDA_HALF_ONE(type, pair, hrsqrt, h2rsqrt, to, from, 1 / __builtin_sqrtf(x))                                     \
  SIMCUDA_HALF_ONE(type, pair, hrcp, h2rcp, to, from, 1 / x)                                                          \
  SIMCUDA_HALF_ONE(type, pair, hlog, h2log, to, from, __builtin_logf(x))                                              \
  SIMCUDA_HALF_ONE(type, pair, hlog2, h2log2, to, from, __builtin_log2f(x))                                           \
  SIMCUDA_HALF_ONE(type, pair, hlog10, h2log10, to, from, __builtin_log10f(x))                                        \
  SIMCUDA_HALF_ONE(type, pair, hexp, h2exp, to, from, __builtin_expf(x))                                              \
  SIMCUDA_HALF_ONE(type, pair, hexp2, h2exp2, to, from, __builtin_exp2f(x))                                           \
  SIMCUDA_HALF_ONE(type, pair, hexp10, h2exp10, to, from, __builtin_exp10f(x))                                        \
  SIMCUDA_HALF_ONE(type, pair, hsin, h2sin, to, from, __builtin_sinf(x))                                              \
  SIMCUDA_HALF_ONE(type, pair, hcos, h2cos, to, from, __builtin_cosf(x))                                              \
  SIMCUDA_HALF_ONE(type, pair, htanh, h2tanh, to, from, __builtin_tanhf(x))                                           \
  SIMCUDA_HALF_ONE(type, pair, htanh_approx, h2tanh_approx, to, from, __builtin_tanhf(x))                             \
  SIMCUDA_INLINE type __hfma(type x, type y, type z) { return from(__builtin_fmaf(to(x), to(y), to(z))); }            \
  SIMCUDA_INLINE type __hfma_relu(type x, type y, type z) {                                                           \
    return from(__builtin_fmaxf(__builtin_fmaf(to(x), to(y), to(z)), 0));                                             \
  }                                                                                                                   \
  SIMCUDA_INLINE type __hfma_sat(type x, type y, type z) {                                                            \
    return from(__saturatef(__builtin_fmaf(to(x), to(y), to(z))));                                                    \
  }                                                                                                                   \
  SIMCUDA_INLINE pair __hfma2(pair x, pair y, pair z) { return pair(__hfma(x.x, y.x, z.x), __hfma(x.y, y.y, z.y)); }  \
  SIMCUDA_HALF_INTEGER(type, to, __##short_name##2int, int)                                                           \
  SIMCUDA_HALF_INTEGER(type, to, __##short_name##2uint, unsigned)                                                     \
  SIMCUDA_HALF_INTEGER(type, to, __##short_name##2ll, long long)                                                      \
  SIMCUDA_HALF_INTEGER(type, to, __##short_name##2ull, unsigned long long)                                            \
  SIMCUDA_HALF_INTEGER(type, to, __##short_name##2short, short)                                                       \
  SIMCUDA_HALF_INTEGER(type, to, __##short_name##2ushort, unsigned short)                                             \
  SIMCUDA_INLINE type atomicAdd(type* address, type value) {                                                          \
    return simcuda_device::change_bits<unsigned short>(address, [&](type old) { return from(to(old) + to(value)); }); \
  }                                                                                                                   \
  SIMCUDA_INLINE pair atomicAdd(pair* address, pair value) {                                                          \
    return pair(atomicAdd(&address->x, value.x), atomicAdd(&address->y, value.y));                                    \
  }
