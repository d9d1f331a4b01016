// Tables of kernels and variables, from their C++ names (csrc/include/simcuda_device.h). The code that they describe is
// in the same source.
#pragma once

namespace simcuda_device {

template <unsigned... numbers>
struct Numbers {};
template <unsigned count, unsigned... numbers>
struct NumbersBelow : NumbersBelow<count - 1, count - 1, numbers...> {};
template <unsigned... numbers>
struct NumbersBelow<0, numbers...> {
  using Type = Numbers<numbers...>;
};

// By its type, a parameter that is a pointer may be written through unless it points to constants.
template <typename T>
struct Parameter {
  static constexpr SimcudaParameter value = {sizeof(T), alignof(T), 0};
};
template <typename T>
struct Parameter<T*> {
  static constexpr SimcudaParameter value = {sizeof(T*), alignof(T*), 1};
};
template <typename T>
struct Parameter<const T*> {
  static constexpr SimcudaParameter value = {sizeof(T*), alignof(T*), 0};
};

template <typename T>
struct Value {
  using Type = T;
};
template <typename T>
struct Value<const T> {
  using Type = T;
};

// `written`: by parameter, as in SimcudaParameter.
template <auto function, unsigned long long... written>
struct Kernel;

template <typename... P, void (*function)(P...), unsigned long long... written>
struct Kernel<function, written...> {
  static_assert(sizeof...(P) == sizeof...(written), "PTX has other parameters than the function");
  template <unsigned... numbers>
  static void unpack(void** arguments, Numbers<numbers...>) {
    function(*static_cast<typename Value<P>::Type*>(arguments[numbers])...);
  }
  static void call(void** arguments) { unpack(arguments, typename NumbersBelow<sizeof...(P)>::Type()); }
  static SimcudaKernel make(const char* name, unsigned threads, unsigned registers, unsigned shared,
                            const char* refusal) {
    static const SimcudaParameter parameters[] = {{sizeof(P), alignof(P), written}..., {0, 1, 0}};
    return {name, &call, parameters, sizeof...(P), threads, registers, shared, refusal};
  }
};

template <typename T>
SimcudaVariable variable(const char* name, T& value) {
  return {name, const_cast<void*>(static_cast<const volatile void*>(&value)), sizeof(T)};
}

}  // namespace simcuda_device
