// Functions of mathematics and on bits. CUDA Math API.
//
// Names of the C library are declared here for a program without its headers (SIMCUDA_RTC), with CUDA's overloads.
#pragma once

#if defined(SIMCUDA_RTC)

extern "C" {
#define SIMCUDA_ONE(name)       \
  double name(double) noexcept; \
  float name##f(float) noexcept;
#define SIMCUDA_TWO(name)               \
  double name(double, double) noexcept; \
  float name##f(float, float) noexcept;
#include "simcuda_math.def"
#undef SIMCUDA_ONE
#undef SIMCUDA_TWO
double nan(const char*) noexcept;
double remquo(double, double, int*) noexcept;
float remquof(float, float, int*) noexcept;
double scalbln(double, long) noexcept;
float scalblnf(float, long) noexcept;
float nanf(const char*) noexcept;
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
double frexp(double, int*) noexcept;
float frexpf(float, int*) noexcept;
double modf(double, double*) noexcept;
float modff(float, float*) noexcept;
double scalbn(double, int) noexcept;
float scalbnf(float, int) noexcept;
void sincos(double, double*, double*) noexcept;
void sincosf(float, float*, float*) noexcept;
int ilogb(double) noexcept;
int ilogbf(float) noexcept;
long lround(double) noexcept;
long lroundf(float) noexcept;
long lrint(double) noexcept;
long lrintf(float) noexcept;
long long llround(double) noexcept;
long long llroundf(float) noexcept;
long long llrint(double) noexcept;
long long llrintf(float) noexcept;
int abs(int) noexcept;
long labs(long) noexcept;
long long llabs(long long) noexcept;
}

// As NVRTC has them: for float, and for no integers.
#define SIMCUDA_ONE(name) \
  SIMCUDA_INLINE float name(float x) { return name##f(x); }
#define SIMCUDA_TWO(name) \
  SIMCUDA_INLINE float name(float x, float y) { return name##f(x, y); }
#include "simcuda_math.def"
#undef SIMCUDA_ONE
#undef SIMCUDA_TWO
SIMCUDA_INLINE float fma(float x, float y, float z) { return fmaf(x, y, z); }
SIMCUDA_INLINE float ldexp(float x, int n) { return ldexpf(x, n); }
SIMCUDA_INLINE float frexp(float x, int* n) { return frexpf(x, n); }
SIMCUDA_INLINE float modf(float x, float* y) { return modff(x, y); }
SIMCUDA_INLINE float scalbn(float x, int n) { return scalbnf(x, n); }
SIMCUDA_INLINE float scalbln(float x, long n) { return scalblnf(x, n); }
SIMCUDA_INLINE float remquo(float x, float y, int* n) { return remquof(x, y, n); }
SIMCUDA_INLINE void sincos(float x, float* s, float* c) { sincosf(x, s, c); }
SIMCUDA_INLINE int ilogb(float x) { return ilogbf(x); }
SIMCUDA_INLINE long lround(float x) { return lroundf(x); }
SIMCUDA_INLINE long lrint(float x) { return lrintf(x); }
SIMCUDA_INLINE long long llround(float x) { return llroundf(x); }
SIMCUDA_INLINE long long llrint(float x) { return llrintf(x); }
SIMCUDA_INLINE float abs(float x) { return __builtin_fabsf(x); }
SIMCUDA_INLINE double abs(double x) { return __builtin_fabs(x); }
SIMCUDA_INLINE long abs(long x) { return labs(x); }
SIMCUDA_INLINE long long abs(long long x) { return llabs(x); }
#define SIMCUDA_TEST(name)                                          \
  SIMCUDA_INLINE bool name(float x) { return __builtin_##name(x); } \
  SIMCUDA_INLINE bool name(double x) { return __builtin_##name(x); }
SIMCUDA_TEST(isnan)
SIMCUDA_TEST(isinf)
SIMCUDA_TEST(isfinite)
SIMCUDA_TEST(signbit)
#undef SIMCUDA_TEST

#endif

#if !defined(INFINITY)
#define INFINITY __builtin_inff()
#endif
#if !defined(NAN)
#define NAN __builtin_nanf("")
#endif

// The smaller and the larger of two numbers of one type, and of a signed and an unsigned one.
#define SIMCUDA_EXTREMES(left, right, type)                                                           \
  SIMCUDA_INLINE type min(left x, right y) {                                                          \
    return static_cast<type>(x) < static_cast<type>(y) ? static_cast<type>(x) : static_cast<type>(y); \
  }                                                                                                   \
  SIMCUDA_INLINE type max(left x, right y) {                                                          \
    return static_cast<type>(x) > static_cast<type>(y) ? static_cast<type>(x) : static_cast<type>(y); \
  }
SIMCUDA_EXTREMES(int, int, int)
SIMCUDA_EXTREMES(unsigned, unsigned, unsigned)
SIMCUDA_EXTREMES(int, unsigned, unsigned)
SIMCUDA_EXTREMES(unsigned, int, unsigned)
SIMCUDA_EXTREMES(long, long, long)
SIMCUDA_EXTREMES(unsigned long, unsigned long, unsigned long)
SIMCUDA_EXTREMES(long, unsigned long, unsigned long)
SIMCUDA_EXTREMES(unsigned long, long, unsigned long)
SIMCUDA_EXTREMES(long long, long long, long long)
SIMCUDA_EXTREMES(unsigned long long, unsigned long long, unsigned long long)
SIMCUDA_EXTREMES(long long, unsigned long long, unsigned long long)
SIMCUDA_EXTREMES(unsigned long long, long long, unsigned long long)
#undef SIMCUDA_EXTREMES
#define SIMCUDA_EXTREMES(left, right, type)                                          \
  SIMCUDA_INLINE type min(left x, right y) { return __builtin_fmin##type##_(x, y); } \
  SIMCUDA_INLINE type max(left x, right y) { return __builtin_fmax##type##_(x, y); }
#define __builtin_fminfloat_ __builtin_fminf
#define __builtin_fmaxfloat_ __builtin_fmaxf
#define __builtin_fmindouble_ __builtin_fmin
#define __builtin_fmaxdouble_ __builtin_fmax
SIMCUDA_EXTREMES(float, float, float)
SIMCUDA_EXTREMES(double, double, double)
SIMCUDA_EXTREMES(float, double, double)
SIMCUDA_EXTREMES(double, float, double)
#undef SIMCUDA_EXTREMES
#undef __builtin_fminfloat_
#undef __builtin_fmaxfloat_
#undef __builtin_fmindouble_
#undef __builtin_fmaxdouble_

#define SIMCUDA_MATH(type, name, parameters, ...) \
  SIMCUDA_INLINE type name parameters { return __VA_ARGS__; }

// The C library declares these names for itself.
#define __expf simcuda_fast_expf
#define __exp10f simcuda_fast_exp10f
#define __logf simcuda_fast_logf
#define __log2f simcuda_fast_log2f
#define __log10f simcuda_fast_log10f
#define __powf simcuda_fast_powf
#define __sinf simcuda_fast_sinf
#define __cosf simcuda_fast_cosf
#define __tanf simcuda_fast_tanf
#define __tanhf simcuda_fast_tanhf
#define __sincosf simcuda_fast_sincosf

SIMCUDA_MATH(float, rsqrtf, (float x), 1 / __builtin_sqrtf(x))
SIMCUDA_MATH(double, rsqrt, (double x), 1 / __builtin_sqrt(x))
SIMCUDA_MATH(float, rsqrt, (float x), 1 / __builtin_sqrtf(x))
SIMCUDA_MATH(float, rcbrtf, (float x), 1 / __builtin_cbrtf(x))
SIMCUDA_MATH(double, rcbrt, (double x), 1 / __builtin_cbrt(x))
SIMCUDA_MATH(float, sinpif, (float x), __builtin_sinf(x * 3.14159265358979323846f))
SIMCUDA_MATH(double, sinpi, (double x), __builtin_sin(x * 3.14159265358979323846))
SIMCUDA_MATH(float, cospif, (float x), __builtin_cosf(x * 3.14159265358979323846f))
SIMCUDA_MATH(double, cospi, (double x), __builtin_cos(x * 3.14159265358979323846))
SIMCUDA_MATH(float, norm3df, (float a, float b, float c), __builtin_sqrtf(a* a + b * b + c * c))
SIMCUDA_MATH(float, normcdff, (float x), 0.5f * __builtin_erfcf(x * -0.70710678118654752440f))
SIMCUDA_MATH(double, normcdf, (double x), 0.5 * __builtin_erfc(x * -0.70710678118654752440))
SIMCUDA_MATH(float, erfcxf, (float x), __builtin_expf(x* x) * __builtin_erfcf(x))
SIMCUDA_MATH(float, fdividef, (float x, float y), x / y)
SIMCUDA_MATH(float, saturatef, (float x), x > 0 ? (x < 1 ? x : 1.0f) : 0.0f)
SIMCUDA_MATH(float, __saturatef, (float x), x > 0 ? (x < 1 ? x : 1.0f) : 0.0f)
SIMCUDA_MATH(float, __fdividef, (float x, float y), x / y)
SIMCUDA_MATH(float, __expf, (float x), __builtin_expf(x))
SIMCUDA_MATH(float, __exp10f, (float x), __builtin_exp10f(x))
SIMCUDA_MATH(float, __logf, (float x), __builtin_logf(x))
SIMCUDA_MATH(float, __log2f, (float x), __builtin_log2f(x))
SIMCUDA_MATH(float, __log10f, (float x), __builtin_log10f(x))
SIMCUDA_MATH(float, __powf, (float x, float y), __builtin_powf(x, y))
SIMCUDA_MATH(float, __sinf, (float x), __builtin_sinf(x))
SIMCUDA_MATH(float, __cosf, (float x), __builtin_cosf(x))
SIMCUDA_MATH(float, __tanf, (float x), __builtin_tanf(x))
SIMCUDA_MATH(float, __tanhf, (float x), __builtin_tanhf(x))
SIMCUDA_INLINE void __sincosf(float x, float* s, float* c) {
  *s = __builtin_sinf(x);
  *c = __builtin_cosf(x);
}
SIMCUDA_MATH(float, __frsqrt_rn, (float x), 1 / __builtin_sqrtf(x))

// Arithmetic with a direction. The host rounds to the nearest number, whatever the name says.
#define SIMCUDA_ROUNDED(mode)                                                                \
  SIMCUDA_MATH(float, __fadd_##mode, (float x, float y), x + y)                              \
  SIMCUDA_MATH(float, __fsub_##mode, (float x, float y), x - y)                              \
  SIMCUDA_MATH(float, __fmul_##mode, (float x, float y), x* y)                               \
  SIMCUDA_MATH(float, __fdiv_##mode, (float x, float y), x / y)                              \
  SIMCUDA_MATH(float, __fmaf_##mode, (float x, float y, float z), __builtin_fmaf(x, y, z))   \
  SIMCUDA_MATH(float, __frcp_##mode, (float x), 1 / x)                                       \
  SIMCUDA_MATH(float, __fsqrt_##mode, (float x), __builtin_sqrtf(x))                         \
  SIMCUDA_MATH(double, __dadd_##mode, (double x, double y), x + y)                           \
  SIMCUDA_MATH(double, __dsub_##mode, (double x, double y), x - y)                           \
  SIMCUDA_MATH(double, __dmul_##mode, (double x, double y), x* y)                            \
  SIMCUDA_MATH(double, __ddiv_##mode, (double x, double y), x / y)                           \
  SIMCUDA_MATH(double, __fma_##mode, (double x, double y, double z), __builtin_fma(x, y, z)) \
  SIMCUDA_MATH(double, __drcp_##mode, (double x), 1 / x)                                     \
  SIMCUDA_MATH(double, __dsqrt_##mode, (double x), __builtin_sqrt(x))                        \
  SIMCUDA_MATH(float, __int2float_##mode, (int x), static_cast<float>(x))                    \
  SIMCUDA_MATH(float, __uint2float_##mode, (unsigned x), static_cast<float>(x))              \
  SIMCUDA_MATH(float, __ll2float_##mode, (long long x), static_cast<float>(x))               \
  SIMCUDA_MATH(float, __ull2float_##mode, (unsigned long long x), static_cast<float>(x))     \
  SIMCUDA_MATH(double, __ll2double_##mode, (long long x), static_cast<double>(x))            \
  SIMCUDA_MATH(double, __ull2double_##mode, (unsigned long long x), static_cast<double>(x))  \
  SIMCUDA_MATH(float, __double2float_##mode, (double x), static_cast<float>(x))
SIMCUDA_ROUNDED(rn)
SIMCUDA_ROUNDED(rz)
SIMCUDA_ROUNDED(ru)
SIMCUDA_ROUNDED(rd)
#undef SIMCUDA_ROUNDED

namespace simcuda_device {
// A conversion to an integer ends at the limits of the type, and makes 0 of NaN, as on a GPU.
template <typename To, typename From>
SIMCUDA_INLINE To clamped(From x) {
  constexpr bool is_signed = static_cast<To>(-1) < To(0);
  constexpr To most = is_signed ? static_cast<To>((static_cast<unsigned long long>(1) << (sizeof(To) * 8 - 1)) - 1)
                                : static_cast<To>(-1);
  constexpr To least = is_signed ? static_cast<To>(-most - 1) : To(0);
  if (x != x) return 0;
  if (x >= static_cast<From>(most)) return most;
  if (x <= static_cast<From>(least)) return least;
  return static_cast<To>(x);
}
}  // namespace simcuda_device

#define SIMCUDA_CONVERSIONS(mode, single, twofold)                                                        \
  SIMCUDA_MATH(int, __float2int_##mode, (float x), simcuda_device::clamped<int>(single(x)))               \
  SIMCUDA_MATH(unsigned, __float2uint_##mode, (float x), simcuda_device::clamped<unsigned>(single(x)))    \
  SIMCUDA_MATH(long long, __float2ll_##mode, (float x), simcuda_device::clamped<long long>(single(x)))    \
  SIMCUDA_MATH(unsigned long long, __float2ull_##mode, (float x),                                         \
               simcuda_device::clamped<unsigned long long>(single(x)))                                    \
  SIMCUDA_MATH(int, __double2int_##mode, (double x), simcuda_device::clamped<int>(twofold(x)))            \
  SIMCUDA_MATH(unsigned, __double2uint_##mode, (double x), simcuda_device::clamped<unsigned>(twofold(x))) \
  SIMCUDA_MATH(long long, __double2ll_##mode, (double x), simcuda_device::clamped<long long>(twofold(x))) \
  SIMCUDA_MATH(unsigned long long, __double2ull_##mode, (double x),                                       \
               simcuda_device::clamped<unsigned long long>(twofold(x)))
SIMCUDA_CONVERSIONS(rn, __builtin_nearbyintf, __builtin_nearbyint)
SIMCUDA_CONVERSIONS(rz, __builtin_truncf, __builtin_trunc)
SIMCUDA_CONVERSIONS(ru, __builtin_ceilf, __builtin_ceil)
SIMCUDA_CONVERSIONS(rd, __builtin_floorf, __builtin_floor)
#undef SIMCUDA_CONVERSIONS
SIMCUDA_MATH(double, __int2double_rn, (int x), static_cast<double>(x))
SIMCUDA_MATH(double, __uint2double_rn, (unsigned x), static_cast<double>(x))

#define SIMCUDA_CAST(to, name, from)          \
  SIMCUDA_INLINE to name(from x) {            \
    to bits;                                  \
    __builtin_memcpy(&bits, &x, sizeof bits); \
    return bits;                              \
  }
SIMCUDA_CAST(int, __float_as_int, float)
SIMCUDA_CAST(unsigned, __float_as_uint, float)
SIMCUDA_CAST(float, __int_as_float, int)
SIMCUDA_CAST(float, __uint_as_float, unsigned)
SIMCUDA_CAST(long long, __double_as_longlong, double)
SIMCUDA_CAST(double, __longlong_as_double, long long)
#undef SIMCUDA_CAST
SIMCUDA_MATH(int, __double2hiint, (double x), static_cast<int>(__double_as_longlong(x) >> 32))
SIMCUDA_MATH(int, __double2loint, (double x), static_cast<int>(__double_as_longlong(x)))
SIMCUDA_MATH(double, __hiloint2double, (int high, int low),
             __longlong_as_double(static_cast<long long>(static_cast<unsigned long long>(high) << 32 |
                                                         static_cast<unsigned>(low))))

// Integers.
SIMCUDA_MATH(int, __clz, (int x), x != 0 ? __builtin_clz(static_cast<unsigned>(x)) : 32)
SIMCUDA_MATH(int, __clzll, (long long x), x != 0 ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64)
SIMCUDA_MATH(int, __ffs, (int x), __builtin_ffs(x))
SIMCUDA_MATH(int, __ffsll, (long long x), __builtin_ffsll(x))
SIMCUDA_MATH(int, __popc, (unsigned x), __builtin_popcount(x))
SIMCUDA_MATH(int, __popcll, (unsigned long long x), __builtin_popcountll(x))
SIMCUDA_INLINE unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
  return reversed;
}
SIMCUDA_MATH(unsigned long long, __brevll, (unsigned long long x),
             static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
                 __brev(static_cast<unsigned>(x >> 32)))
SIMCUDA_MATH(int, __mulhi, (int x, int y), static_cast<int>(static_cast<long long>(x) * y >> 32))
SIMCUDA_MATH(unsigned, __umulhi, (unsigned x, unsigned y),
             static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32))
SIMCUDA_MATH(long long, __mul64hi, (long long x, long long y),
             static_cast<long long>(static_cast<__int128>(x) * y >> 64))
SIMCUDA_MATH(unsigned long long, __umul64hi, (unsigned long long x, unsigned long long y),
             static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64))
SIMCUDA_MATH(int, __mul24, (int x, int y), (x << 8 >> 8) * (y << 8 >> 8))
SIMCUDA_MATH(unsigned, __umul24, (unsigned x, unsigned y), (x & 0xffffff) * (y & 0xffffff))
SIMCUDA_MATH(unsigned, __sad, (int x, int y, unsigned z), z + static_cast<unsigned>(x > y ? x - y : y - x))
SIMCUDA_MATH(unsigned, __usad, (unsigned x, unsigned y, unsigned z), z + (x > y ? x - y : y - x))
SIMCUDA_MATH(int, __hadd, (int x, int y), static_cast<int>((static_cast<long long>(x) + y) >> 1))
SIMCUDA_MATH(int, __rhadd, (int x, int y), static_cast<int>((static_cast<long long>(x) + y + 1) >> 1))
SIMCUDA_MATH(unsigned, __funnelshift_l, (unsigned low, unsigned high, unsigned shift),
             static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31) >> 32))
SIMCUDA_MATH(unsigned, __funnelshift_r, (unsigned low, unsigned high, unsigned shift),
             static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31)))
SIMCUDA_INLINE unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
  unsigned chosen = 0;
  for (int place = 0; place < 4; ++place) {
    chosen |= static_cast<unsigned>(bytes >> ((selector >> (4 * place) & 7) * 8) & 255) << (8 * place);
  }
  return chosen;
}
SIMCUDA_INLINE int __dp4a(int x, int y, int sum) {
  for (int place = 0; place < 32; place += 8) {
    sum += static_cast<signed char>(x >> place) * static_cast<signed char>(y >> place);
  }
  return sum;
}
SIMCUDA_INLINE unsigned __dp4a(unsigned x, unsigned y, unsigned sum) {
  for (int place = 0; place < 32; place += 8) sum += (x >> place & 255) * (y >> place & 255);
  return sum;
}

#undef SIMCUDA_MATH
