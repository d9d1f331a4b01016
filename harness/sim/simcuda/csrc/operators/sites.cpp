#include "sites.h"

#include <Python.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <simcuda_races.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

namespace simcuda::sites {
namespace {

// The frames of a report: those of the program itself, or the innermost ones if torch and pytest have all of them.
constexpr std::size_t most_frames = 4;

struct Frame {
  const std::string* file;
  const std::string* function;
  int line;
};

struct Site {
  std::vector<Frame> own, innermost;
};

// Returns the one copy of a text. A reference to the code object instead would keep alive what torch's compiler hangs
// on it.
const std::string* kept(PyObject* text) {
  static auto* const texts = new std::unordered_set<std::string>;  // guarded by the GIL
  Py_ssize_t size = 0;
  const char* const data = PyUnicode_AsUTF8AndSize(text, &size);
  if (data == nullptr) {
    PyErr_Clear();
    return &*texts->insert("?").first;
  }
  return &*texts->emplace(data, static_cast<std::size_t>(size)).first;
}

// Whether a file is none of the program: torch, code that its compiler has written, pytest, and this project.
bool is_of_library(const std::string& file) {
  for (const char* const part : {"/site-packages/torch/", "/torchinductor_", "/site-packages/_pytest/",
                                 "/site-packages/pluggy/", "/harness/sim/simcuda/compiler/"}) {
    if (file.find(part) != std::string::npos) return true;
  }
  return false;
}

void walk(Site& site) {
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame != nullptr && site.own.size() < most_frames) {
    PyCodeObject* const code = PyFrame_GetCode(frame);
    PyObject* const name = PyObject_GetAttrString(reinterpret_cast<PyObject*>(code), "co_name");
    PyObject* const file = PyObject_GetAttrString(reinterpret_cast<PyObject*>(code), "co_filename");
    if (name != nullptr && file != nullptr) {
      const Frame found{kept(file), kept(name), PyFrame_GetLineNumber(frame)};
      if (site.innermost.size() < most_frames) {
        site.innermost.push_back(found);
      }
      if (!is_of_library(*found.file)) {
        site.own.push_back(found);
      }
    }
    PyErr_Clear();
    Py_XDECREF(name);
    Py_XDECREF(file);
    Py_DECREF(code);
    PyFrameObject* const back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
}

// Threads that Python does not know, such as those of autograd, have no place in the program.
std::shared_ptr<void> gather() {
  if (Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) {
    return nullptr;
  }
  auto site = std::make_shared<Site>();
  const PyGILState_STATE state = PyGILState_Ensure();
  walk(*site);
  PyGILState_Release(state);
  return site;
}

std::string describe(const void* pointer) {
  const auto& site = *static_cast<const Site*>(pointer);
  std::string text;
  for (const Frame& frame : site.own.empty() ? site.innermost : site.own) {
    text += *frame.file + ":" + std::to_string(frame.line) + " in " + *frame.function + "\n";
  }
  return text;
}

bool call_soon(void (*function)()) {
  const auto call = [](void* pointer) {
    reinterpret_cast<void (*)()>(pointer)();
    return 0;
  };
  return Py_IsInitialized() != 0 && Py_AddPendingCall(call, reinterpret_cast<void*>(function)) == 0;
}

bool of_graphs(const c10::MempoolId_t& pool) { return pool != c10::MempoolId_t{0, 0}; }

void note(const c10::CachingDeviceAllocator::TraceEntry& entry) {
  using Entry = c10::CachingDeviceAllocator::TraceEntry;
  const auto* const address = reinterpret_cast<const void*>(entry.addr_);
  if (entry.action_ == Entry::ALLOC) {
    simcudaNoteBlock(address, entry.size_, of_graphs(entry.mempool_), false);
  } else if (entry.action_ == Entry::FREE_COMPLETED) {
    simcudaNoteFreed(address);
  }
}

// Gives the runtime the blocks that tensors have, and from now on those that they get and give back.
void follow_allocator() {
  // Other allocators, such as cudaMallocAsync, do not tell; each of their blocks is an allocation of the runtime.
  if (c10::cuda::CUDACachingAllocator::name() != "native") {
    return;
  }
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(&note);
  for (const auto& segment : c10::cuda::CUDACachingAllocator::snapshot().segments) {
    auto address = static_cast<std::uintptr_t>(segment.address);
    for (const auto& block : segment.blocks) {
      if (block.allocated) {
        simcudaNoteBlock(reinterpret_cast<const void*>(address), block.size, of_graphs(segment.owner_private_pool_id),
                         true);
      }
      address += block.size;
    }
  }
}

void before_work() {
  static std::once_flag followed;
  static std::atomic<bool> done{false};
  if (!done && c10::cuda::CUDACachingAllocator::get()->initialized()) {
    std::call_once(followed, [] { follow_allocator(); });
    done = true;
  }
}

}  // namespace

bool wanted() {
  static const bool wanted = simcudaChecksWork() != 0;
  return wanted;
}

void install() {
  if (wanted()) {
    constexpr SimcudaSites functions{&gather, &describe, &before_work, &call_soon};
    simcudaSetSites(&functions);
  }
}

}  // namespace simcuda::sites
