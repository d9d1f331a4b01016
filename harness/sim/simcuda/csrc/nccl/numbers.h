// NCCL's number types that C++ lacks. Conversion from float rounds to nearest, ties to even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace simcuda::nccl {

// IEEE-like numbers with the given sizes of exponent and mantissa. `Finite`: no infinities, as E4M3 in "FP8 Formats for
// Deep Learning". `Saturating`: overflow becomes the largest number, as in CUDA's conversions to 8 bits.
template <typename Bits, int Exponent, int Mantissa, bool Finite, bool Saturating>
class Small {
 public:
  Small() = default;
  explicit Small(float value) : bits_(round(value)) {}
  explicit operator float() const { return widen(bits_); }

 private:
  static constexpr int bias = (1 << (Exponent - 1)) - 1;
  static constexpr unsigned exponent_mask = (1u << Exponent) - 1, mantissa_mask = (1u << Mantissa) - 1;
  static constexpr unsigned sign_bit = 1u << (Exponent + Mantissa);
  static constexpr unsigned infinity = exponent_mask << Mantissa;
  static constexpr unsigned not_a_number = Finite ? infinity | mantissa_mask : infinity | (1u << (Mantissa - 1));
  static constexpr unsigned largest = Finite ? infinity | (mantissa_mask - 1) : infinity - 1;

  static Bits round(float value) {
    const unsigned sign = std::signbit(value) ? sign_bit : 0;
    if (std::isnan(value)) return static_cast<Bits>(sign | not_a_number);
    const unsigned beyond = Saturating ? largest : infinity;
    if (std::isinf(value)) return static_cast<Bits>(sign | beyond);
    if (value == 0) return static_cast<Bits>(sign);
    int exponent = 0;
    std::frexp(value, &exponent);  // in [0.5, 1)
    const int place = std::max(exponent - 1, 1 - bias);
    // The value in units in the last place, rounded in the current mode, which is to nearest.
    const auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(std::fabs(value), Mantissa - place)));
    // A carry goes into the exponent, which also turns a subnormal number into a normal one.
    const unsigned bits = (static_cast<unsigned>(place + bias - 1) << Mantissa) + units;
    return static_cast<Bits>(sign | (bits > largest ? beyond : bits));
  }

  static float widen(unsigned bits) {
    const float sign = bits & sign_bit ? -1.0F : 1.0F;
    const unsigned exponent = bits >> Mantissa & exponent_mask, mantissa = bits & mantissa_mask;
    if (Finite ? (bits & ~sign_bit) == not_a_number : exponent == exponent_mask && mantissa != 0) {
      return std::numeric_limits<float>::quiet_NaN();
    }
    if (!Finite && exponent == exponent_mask) return sign * std::numeric_limits<float>::infinity();
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), 1 - bias - Mantissa);
    return sign *
           std::ldexp(static_cast<float>(mantissa | 1u << Mantissa), static_cast<int>(exponent) - bias - Mantissa);
  }

  Bits bits_ = 0;
};

using Half = Small<std::uint16_t, 5, 10, false, false>;
using E4M3 = Small<std::uint8_t, 4, 3, true, true>;
using E5M2 = Small<std::uint8_t, 5, 2, false, true>;

// The upper half of a float.
class BFloat16 {
 public:
  BFloat16() = default;
  explicit BFloat16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    bits_ = static_cast<std::uint16_t>(std::isnan(value) ? 0x7fff : rounded >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits_} << 16); }

 private:
  std::uint16_t bits_ = 0;
};

}  // namespace simcuda::nccl
