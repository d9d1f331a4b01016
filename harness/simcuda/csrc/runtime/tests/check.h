// What the runtime's own tests are written with: a list of named tests, checks, and gates for work to wait at.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../include/simcuda.h"

namespace simcuda::testing {

struct Test {
  const char* name;
  void (*body)();
};

std::vector<Test>& tests();

struct Registered {
  Registered(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

// Each test runs in a process of its own, with two devices of 64 MiB that nobody has used.
#define TEST(name)                                                             \
  static void name();                                                          \
  static const ::simcuda::testing::Registered registered_##name{#name, &name}; \
  static void name()

class Failed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] void fail(const char* file, int line, const std::string& what);

template <typename Left, typename Right>
void check_equal(const char* file, int line, const char* text, const Left& left, const Right& right) {
  if (left == right) return;
  std::ostringstream what;
  what << text << ": " << left << " against " << right;
  fail(file, line, what.str());
}

void check_error(const char* file, int line, const char* text, cudaError_t got, cudaError_t expected);

#define CHECK(condition) \
  if (!(condition)) ::simcuda::testing::fail(__FILE__, __LINE__, #condition)
#define EQUAL(left, right) ::simcuda::testing::check_equal(__FILE__, __LINE__, #left " == " #right, left, right)
// The call returns this error, and leaves it as the last one of the thread.
#define GIVES(error, ...) ::simcuda::testing::check_error(__FILE__, __LINE__, #__VA_ARGS__, __VA_ARGS__, error)
#define OK(...) GIVES(cudaSuccess, __VA_ARGS__)

// Work that is launched to pass it waits until it is opened, at its end at the latest.
class Gate {
 public:
  Gate() : state_(std::make_shared<State>()) {}
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  std::function<void()> work() const {
    return [state = state_] {
      std::unique_lock lock(state->mutex);
      state->reached = true;
      state->changed.notify_all();
      state->changed.wait(lock, [&] { return state->open; });
    };
  }
  void open() {
    const std::lock_guard lock(state_->mutex);
    state_->open = true;
    state_->changed.notify_all();
  }
  // Until some stream has come to it.
  void await() {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [this] { return state_->reached; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false, reached = false;
  };
  const std::shared_ptr<State> state_;
};

inline cudaError_t launch(cudaStream_t stream, std::function<void()> work) {
  return static_cast<cudaError_t>(simcudaLaunch(stream, "test", &work));
}

cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking, int priority = 0);
cudaEvent_t new_event(unsigned flags = cudaEventDefault);

// A graph of what is done to the stream meanwhile.
template <typename Body>
cudaGraph_t captured(cudaStream_t stream, Body&& body) {
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  body();
  cudaGraph_t graph = nullptr;
  OK(cudaStreamEndCapture(stream, &graph));
  return graph;
}

inline cudaGraphExec_t instantiated(cudaGraph_t graph) {
  cudaGraphExec_t exec = nullptr;
  OK(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}

}  // namespace simcuda::testing
