// Work of streams that is written in Python: the kernels of Triton, which its interpreter runs.

#include <Python.h>
#include <cuda_runtime_api.h>
#include <simcuda.h>
#include <simcuda_races.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "sites.h"

namespace simcuda {
namespace {

// Callables that run now, and whether the interpreter is about to end. It must not end while one of them runs, and none
// may begin after that: its thread could never get the GIL.
struct Running {
  std::mutex mutex;
  std::condition_variable none;
  int count = 0;
  bool ended = false;
};

Running& running() {
  static auto* const state = new Running;
  return *state;
}

class RunningScope {
 public:
  RunningScope() {
    const std::lock_guard lock(running().mutex);
    entered_ = !running().ended;
    if (entered_) ++running().count;
  }
  ~RunningScope() {
    const std::lock_guard lock(running().mutex);
    if (entered_ && --running().count == 0) running().none.notify_all();
  }
  RunningScope(const RunningScope&) = delete;
  RunningScope& operator=(const RunningScope&) = delete;
  bool entered() const { return entered_; }

 private:
  bool entered_ = false;
};

// Objects without an owner. Whoever drops the last copy of work may hold a lock of the runtime, for which a thread that
// has the GIL may wait, so nobody waits for the GIL there.
struct Dropped {
  std::mutex mutex;
  std::vector<PyObject*> objects;
};

Dropped& dropped() {
  static auto* const state = new Dropped;
  return *state;
}

// Needs the GIL.
int release_dropped(void*) {
  std::vector<PyObject*> objects;
  {
    const std::lock_guard lock(dropped().mutex);
    objects.swap(dropped().objects);
  }
  for (PyObject* const object : objects) Py_DECREF(object);
  return 0;
}

void drop(PyObject* object) {
  const RunningScope scope;
  if (!scope.entered()) return;  // the interpreter frees nothing any more
  {
    const std::lock_guard lock(dropped().mutex);
    dropped().objects.push_back(object);
  }
  Py_AddPendingCall(&release_dropped, nullptr);  // a later launch releases it if there are too many
}

// Returns the exception that is set, as text, and clears it.
std::string take_exception() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* const text = value != nullptr ? PyObject_Str(value) : nullptr;
  const char* const characters = text != nullptr ? PyUnicode_AsUTF8(text) : nullptr;
  std::string result = characters != nullptr ? characters : "an exception without a text";
  PyErr_Clear();
  Py_XDECREF(text);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return result;
}

void call(PyObject* object) {
  const RunningScope scope;
  if (!scope.entered()) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* const result = PyObject_CallNoArgs(object);
  const std::string error = result == nullptr ? take_exception() : std::string();
  Py_XDECREF(result);
  PyGILState_Release(state);
  if (result == nullptr) throw std::runtime_error(error);
}

// Needs the GIL. A record of a launch may outlive the Python object, so the copy stays.
const char* kept_name(PyObject* name) {
  static auto* const names = new std::unordered_set<std::string>;
  const char* const text = PyUnicode_AsUTF8(name);
  return text != nullptr ? names->emplace(text).first->c_str() : nullptr;
}

bool read_accesses(PyObject* list, std::vector<SimcudaAccess>& accesses) {
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    unsigned long long address = 0, bytes = 0;
    int write = 0;
    if (PyArg_ParseTuple(PyList_GetItem(list, i), "KKp", &address, &bytes, &write) == 0) return false;
    accesses.push_back({reinterpret_cast<const void*>(address), bytes, write != 0});
  }
  return PyErr_Occurred() == nullptr;
}

}  // namespace
}  // namespace simcuda

extern "C" {

// Queues a call of a Python object without arguments on a stream of the current device, or adds it to the stream's
// capture. `accesses`: a list of tuples of an address, bytes, and whether it is written, for the check for races. An
// exception of the object becomes a device-side assertion. Returns None, or null with RuntimeError set.
__attribute__((visibility("default"))) PyObject* simcuda_launch_callable(PyObject* object, PyObject* name,
                                                                         unsigned long long stream,
                                                                         PyObject* accesses) {
  using namespace simcuda;
  release_dropped(nullptr);
  const char* const kept = kept_name(name);
  std::vector<SimcudaAccess> runs;
  if (kept == nullptr || !read_accesses(accesses, runs)) return nullptr;
  if (sites::wanted()) simcudaDeclare(runs.data(), runs.size());
  Py_INCREF(object);
  std::shared_ptr<PyObject> owned(object, &drop);
  std::function<void()> work = [owned = std::move(owned)] { call(owned.get()); };
  const auto error = static_cast<cudaError_t>(simcudaLaunch(reinterpret_cast<cudaStream_t>(stream), kept, &work));
  if (error != cudaSuccess) {
    cudaGetLastError();  // Triton launches by the driver, which does not set the runtime's last error
    PyErr_SetString(PyExc_RuntimeError, (std::string("CUDA error: ") + cudaGetErrorString(error)).c_str());
    return nullptr;
  }
  Py_RETURN_NONE;
}

// Waits for the callables that run, and drops all later ones. Call it before the interpreter ends, without the GIL.
__attribute__((visibility("default"))) void simcuda_end_callables() {
  auto& state = simcuda::running();
  std::unique_lock lock(state.mutex);
  state.ended = true;
  state.none.wait(lock, [&state] { return state.count == 0; });
}
}
