// Follows the kernel that Inductor generated, and the bindings' function that tells a tensor's address. It queues a
// call of the kernel, with what the arguments are now.
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>

extern "C" int simcudaLaunch(void* stream, const char* name, std::function<void()>* work);
extern "C" int cudaGetLastError();
extern "C" const char* cudaGetErrorString(int error);

namespace simcuda {

template <typename T>
T number(PyObject* object) {
  if constexpr (std::is_integral_v<T>) {
    const T result =
        static_cast<T>(PyLong_Check(object) ? PyLong_AsUnsignedLongLongMask(object) : PyObject_IsTrue(object));
    if (PyErr_Occurred()) throw std::runtime_error("expected a whole number");
    return result;
  } else {
    const Py_complex value = PyComplex_AsCComplex(object);
    if (PyErr_Occurred()) throw std::runtime_error("expected a number");
    if constexpr (std::is_constructible_v<T, double, double>) {
      return T(value.real, value.imag);
    } else {
      return static_cast<T>(value.real);
    }
  }
}

// An argument as the kernel takes it.
template <typename T>
struct Argument {
  explicit Argument(PyObject* object) : value(number<T>(object)) {}
  T get() { return value; }
  T value;
};

// An address; or a value, where a tensor on the host was given. The host may change that before the kernel runs.
template <typename T>
struct Argument<T*> {
  explicit Argument(PyObject* object) {
    if (PyFloat_Check(object) || PyLong_Check(object) || PyComplex_Check(object)) {
      value = number<std::remove_const_t<T>>(object);
    } else {
      address = static_cast<T*>(_torchinductor_pyobject_tensor_data_ptr(object));
      is_address = true;
    }
  }
  T* get() { return is_address ? address : &value; }
  T* address = nullptr;
  bool is_address = false;
  std::remove_const_t<T> value{};
};

// The bindings get their arguments as a tuple, and since torch 2.15 as an array.
inline PyObject* at(PyObject* call, std::size_t place) { return PyTuple_GET_ITEM(call, place); }
inline PyObject* at(PyObject* const* call, std::size_t place) { return call[place]; }

// The arguments of the call are the kernel's name, what the kernel takes, and the stream.
template <typename Call, typename... Types, std::size_t... Places>
PyObject* launch(Call call, void (*kernel)(Types...), std::index_sequence<Places...>) {
  static std::unordered_set<std::string>
      names;  // under Python's lock; a record of a launch may outlive the Python object
  const char* name = PyUnicode_AsUTF8(at(call, 0));
  if (name == nullptr) throw std::runtime_error("expected a name");
  name = names.emplace(name).first->c_str();
  void* stream = PyLong_AsVoidPtr(at(call, sizeof...(Types) + 1));
  if (PyErr_Occurred()) throw std::runtime_error("expected a stream");
  std::function<void()> work =
      [kernel, arguments = std::tuple(Argument<std::remove_const_t<Types>>(at(call, Places + 1))...)]() mutable {
        kernel(std::get<Places>(arguments).get()...);
      };
  if (const int error = simcudaLaunch(stream, name, &work)) {
    cudaGetLastError();  // kernels of CUDA are launched by the driver, which leaves the runtime's last error alone
    throw std::runtime_error(std::string("CUDA error: ") + cudaGetErrorString(error));
  }
  Py_RETURN_NONE;
}

template <typename Call, typename... Types>
PyObject* launch(Call call, void (*kernel)(Types...)) {
  return launch(call, kernel, std::index_sequence_for<Types...>());
}

}  // namespace simcuda
