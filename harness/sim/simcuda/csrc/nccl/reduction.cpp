#include "reduction.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "numbers.h"

namespace simcuda::nccl {

namespace {

template <typename Type>
struct Tag {
  using type = Type;
};

// Calls the body with the corresponding C++ type.
template <typename Body>
void with_type(ncclDataType_t type, Body&& body) {
  switch (type) {
    case ncclInt8:
      return body(Tag<std::int8_t>());
    case ncclUint8:
      return body(Tag<std::uint8_t>());
    case ncclInt32:
      return body(Tag<std::int32_t>());
    case ncclUint32:
      return body(Tag<std::uint32_t>());
    case ncclInt64:
      return body(Tag<std::int64_t>());
    case ncclUint64:
      return body(Tag<std::uint64_t>());
    case ncclFloat16:
      return body(Tag<Half>());
    case ncclFloat32:
      return body(Tag<float>());
    case ncclFloat64:
      return body(Tag<double>());
    case ncclBfloat16:
      return body(Tag<BFloat16>());
    case ncclFloat8e4m3:
      return body(Tag<E4M3>());
    case ncclFloat8e5m2:
      return body(Tag<E5M2>());
    default:
      return;
  }
}

// The type for sums and products: unsigned for integers, so that they wrap around, and float for small floating-point
// types.
template <typename Type>
auto wide(Type value) {
  if constexpr (std::is_integral_v<Type>) {
    return static_cast<std::make_unsigned_t<Type>>(value);
  } else if constexpr (std::is_floating_point_v<Type>) {
    return value;
  } else {
    return static_cast<float>(value);
  }
}

template <typename Type>
Type combined(Reduction::Kind kind, Type a, Type b) {
  switch (kind) {
    case Reduction::Kind::sum:
      return static_cast<Type>(wide(a) + wide(b));
    case Reduction::Kind::product:
      return static_cast<Type>(wide(a) * wide(b));
    default:
      break;
  }
  const bool maximum = kind == Reduction::Kind::maximum;
  if constexpr (std::is_integral_v<Type>) {
    return maximum ? std::max(a, b) : std::min(a, b);
  } else {  // a NaN loses against a number
    return static_cast<Type>(maximum ? std::fmax(wide(a), wide(b)) : std::fmin(wide(a), wide(b)));
  }
}

// Buffers need not be aligned: torch sends views.
template <typename Type>
Type load(const void* from, std::size_t index) {
  Type value;
  std::memcpy(&value, static_cast<const Type*>(from) + index, sizeof value);
  return value;
}
template <typename Type>
void store(void* to, std::size_t index, Type value) {
  std::memcpy(static_cast<Type*>(to) + index, &value, sizeof value);
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  std::size_t size = 0;
  with_type(type, [&](auto tag) { size = sizeof(typename decltype(tag)::type); });
  return size;
}

const char* name_of(ncclDataType_t type) {
  constexpr const char* names[] = {"int8",    "uint8",   "int32",   "uint32",   "int64",      "uint64",
                                   "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
  return size_of(type) == 0 ? "an unknown type" : names[type];
}

Reduction built_in(ncclRedOp_t op, ncclDataType_t type, int ranks) {
  Reduction reduction;
  using Kind = Reduction::Kind;
  reduction.kind = op == ncclProd  ? Kind::product
                   : op == ncclMax ? Kind::maximum
                   : op == ncclMin ? Kind::minimum
                                   : Kind::sum;
  if (op != ncclAvg) return reduction;
  with_type(type, [&](auto tag) {
    using Type = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<Type>) {
      reduction.divided = true;
    } else {
      reduction.multiplied = true;
      const Type scalar = std::is_same_v<Type, double> ? Type(1.0 / ranks) : Type(static_cast<float>(1.0 / ranks));
      std::memcpy(reduction.scalar.data(), &scalar, sizeof scalar);
    }
  });
  return reduction;
}

void combine(const Reduction& reduction, ncclDataType_t type, void* to, const void* from, std::size_t count) {
  with_type(type, [&](auto tag) {
    using Type = typename decltype(tag)::type;
    for (std::size_t i = 0; i < count; ++i) {
      store(to, i, combined(reduction.kind, load<Type>(to, i), load<Type>(from, i)));
    }
  });
}

void multiply(ncclDataType_t type, void* values, std::size_t count, const void* scalar) {
  with_type(type, [&](auto tag) {
    using Type = typename decltype(tag)::type;
    const Type factor = load<Type>(scalar, 0);
    for (std::size_t i = 0; i < count; ++i) {
      store(values, i, combined(Reduction::Kind::product, load<Type>(values, i), factor));
    }
  });
}

void divide(ncclDataType_t type, void* values, std::size_t count, int by) {
  with_type(type, [&](auto tag) {
    using Type = typename decltype(tag)::type;
    if constexpr (std::is_integral_v<Type>) {
      for (std::size_t i = 0; i < count; ++i) {
        store(values, i, static_cast<Type>(load<Type>(values, i) / static_cast<Type>(by)));
      }
    }
  });
}

}  // namespace simcuda::nccl
