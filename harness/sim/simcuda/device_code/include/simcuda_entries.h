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

template <typename T>
struct Parameter {
  static constexpr SimcudaParameter value = {sizeof(T), alignof(T), false, false};
};
template <typename T>
struct Parameter<T*> {
  static constexpr SimcudaParameter value = {sizeof(T*), alignof(T*), true, true};
};
template <typename T>
struct Parameter<const T*> {
  static constexpr SimcudaParameter value = {sizeof(T*), alignof(T*), true, false};
};
// What `const` and `__restrict__` say of a parameter itself does not matter.
template <typename T>
struct Parameter<const T> : Parameter<T> {};
template <typename T>
struct Parameter<T* __restrict> : Parameter<T*> {};
template <typename T>
struct Parameter<const T* __restrict> : Parameter<const T*> {};

template <typename T>
struct Value {
  using Type = T;
};
template <typename T>
struct Value<const T> {
  using Type = T;
};

// `written`: by parameter, and once more at the end, whether the kernel writes to what it points to.
template <auto function, bool... written>
struct Kernel;

template <typename... P, void (*function)(P...), bool... written>
struct Kernel<function, written...> {
  template <unsigned... numbers>
  static void unpack(void** arguments, Numbers<numbers...>) {
    function(*static_cast<typename Value<P>::Type*>(arguments[numbers])...);
  }
  static void call(void** arguments) { unpack(arguments, typename NumbersBelow<sizeof...(P)>::Type()); }
  static constexpr unsigned count = sizeof...(P);
  static SimcudaKernel make(const char* name, unsigned threads, unsigned registers, unsigned shared,
                            const char* refusal) {
    static SimcudaParameter parameters[count + 1] = {Parameter<P>::value..., {0, 1, false, false}};
    constexpr bool writes[] = {written..., false};
    for (unsigned i = 0; i < count && sizeof...(written) == count + 1; ++i) parameters[i].writable &= writes[i];
    return {name, &call, parameters, count, threads, registers, shared, refusal};
  }
};

template <typename T>
SimcudaVariable variable(const char* name, T& value) {
  return {name, const_cast<void*>(static_cast<const volatile void*>(&value)), sizeof(T)};
}

}  // namespace simcuda_device
