// This file follows the kernel that Inductor generated, whose headers are included before it (binaries.py). It queues a
// call of the kernel with the current values of its arguments.

extern "C" int simcudaLaunch(void* stream, const char* name, std::function<void()>* work);
extern "C" int cudaGetLastError();
extern "C" const char* cudaGetErrorString(int error);

namespace simcuda {

// Returns the address of a tensor's data.
static void* (*data_pointer)(PyObject* tensor) = nullptr;

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

// One argument, converted to the type that the kernel takes.
template <typename T>
struct Argument {
  explicit Argument(PyObject* object) : value(number<T>(object)) {}
  T get() { return value; }
  T value;
};

// A pointer argument. For a tensor on the host, a copy of its value, since the host may change it before the kernel
// runs.
template <typename T>
struct Argument<T*> {
  explicit Argument(PyObject* object) {
    if (PyFloat_Check(object) || PyLong_Check(object) || PyComplex_Check(object)) {
      value = number<std::remove_const_t<T>>(object);
    } else {
      address = static_cast<T*>(data_pointer(object));
      is_address = true;
    }
  }
  T* get() { return is_address ? address : &value; }
  T* address = nullptr;
  bool is_address = false;
  std::remove_const_t<T> value{};
};

// The arguments of the Python call are the kernel's name, the kernel's arguments, and the stream.
template <typename... Types, std::size_t... Places>
PyObject* launch(PyObject* call, void (*kernel)(Types...), std::index_sequence<Places...>) {
  static std::unordered_set<std::string>
      names;  // under Python's lock; a record of a launch may outlive the Python object
  if (PyTuple_GET_SIZE(call) != sizeof...(Types) + 2) throw std::runtime_error("wrong number of arguments");
  const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(call, 0));
  if (name == nullptr) throw std::runtime_error("expected a name");
  name = names.emplace(name).first->c_str();
  void* stream = PyLong_AsVoidPtr(PyTuple_GET_ITEM(call, sizeof...(Types) + 1));
  if (PyErr_Occurred()) throw std::runtime_error("expected a stream");
  std::function<void()> work = [kernel, arguments = std::tuple(Argument<std::remove_const_t<Types>>(
                                            PyTuple_GET_ITEM(call, Places + 1))...)]() mutable {
    kernel(std::get<Places>(arguments).get()...);
  };
  if (const int error = simcudaLaunch(stream, name, &work)) {
    cudaGetLastError();  // the driver launches kernels of CUDA, which does not set the runtime's last error
    throw std::runtime_error(std::string("CUDA error: ") + cudaGetErrorString(error));
  }
  Py_RETURN_NONE;
}

template <typename... Types>
PyObject* launch(PyObject* call, void (*kernel)(Types...)) {
  return launch(call, kernel, std::index_sequence_for<Types...>());
}

}  // namespace simcuda

extern "C" void simcuda_bind(void* data_pointer) {
  simcuda::data_pointer = reinterpret_cast<void* (*)(PyObject*)>(data_pointer);
}

extern "C" PyObject* simcuda_launch(PyObject* call) {
  try {
    return simcuda::launch(call, kernel);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}
