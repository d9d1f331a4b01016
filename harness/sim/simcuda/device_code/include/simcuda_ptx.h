// The instructions of PTX that programs use in inline assembly and that the translation knows.
#pragma once

namespace simcuda_ptx {

template <typename To, typename From>
SIMCUDA_INLINE void store(To& to, From value) {
  static_assert(sizeof to == sizeof value, "an operand has another size than the instruction's");
  __builtin_memcpy(&to, &value, sizeof to);
}

SIMCUDA_INLINE unsigned bits_of(float x) {
  unsigned bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
SIMCUDA_INLINE float float_of(unsigned bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// Rounds to the nearest number of 10 bits of mantissa, ties to even.
SIMCUDA_INLINE unsigned short half_of(float x) {
  const unsigned bits = bits_of(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return 0x7fff;
  if (rest >= 0x47800000) return static_cast<unsigned short>(sign | 0x7c00);
  unsigned value, lost, half;
  if (rest < 0x38800000) {  // a denormal number, or zero
    const unsigned shift = 126 - (rest >> 23);
    if (shift > 24) return static_cast<unsigned short>(sign);
    const unsigned mantissa = (rest & 0x7fffff) | 0x800000;
    value = mantissa >> shift;
    lost = mantissa & ((1u << shift) - 1);
    half = 1u << (shift - 1);
  } else {
    value = (rest - 0x38000000) >> 13;
    lost = rest & 0x1fff;
    half = 0x1000;
  }
  value += lost > half || (lost == half && (value & 1));
  return static_cast<unsigned short>(sign | value);
}

SIMCUDA_INLINE float float_of_half(unsigned short x) {
  const unsigned sign = (x & 0x8000u) << 16, exponent = x >> 10 & 31, mantissa = x & 0x3ff;
  if (exponent == 31) return float_of(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
  const float small = static_cast<float>(mantissa) * (1.0f / 16777216.0f);
  return sign != 0 ? -small : small;
}
template <typename T>
SIMCUDA_INLINE float float_of_half(T x) {
  unsigned short bits;
  static_assert(sizeof x == sizeof bits, "an operand has another size than the instruction's");
  __builtin_memcpy(&bits, &x, sizeof bits);
  return float_of_half(bits);
}

SIMCUDA_INLINE unsigned short bfloat16_of(float x) {
  const unsigned bits = bits_of(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
SIMCUDA_INLINE float float_of_bfloat16(unsigned short x) { return float_of(static_cast<unsigned>(x) << 16); }

}  // namespace simcuda_ptx
