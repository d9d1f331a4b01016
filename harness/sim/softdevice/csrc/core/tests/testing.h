// The test framework of both devices: a list of named tests, checks, and gates at which work waits.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace testing {

struct Test {
  const char* name;
  void (*body)();
};

std::vector<Test>& tests();

struct Registered {
  Registered(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

// Each test runs in its own process, with two unused devices of 64 MiB.
#define TEST(name)                                                    \
  static void name();                                                 \
  static const ::testing::Registered registered_##name{#name, &name}; \
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

// Checks that `call` throws an `Error` whose text contains `part`.
template <typename Error, typename Call>
void check_throws(const char* file, int line, const char* text, const std::string& part, Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    if (std::string(error.what()).find(part) != std::string::npos) return;
    fail(file, line, std::string(text) + ": its error does not say '" + part + "': " + error.what());
  }
  fail(file, line, std::string(text) + ": nothing was thrown");
}

#define CHECK(condition) \
  if (!(condition)) ::testing::fail(__FILE__, __LINE__, #condition)
#define EQUAL(left, right) ::testing::check_equal(__FILE__, __LINE__, #left " == " #right, left, right)
#define THROWS(error, part, ...) \
  ::testing::check_throws<error>(__FILE__, __LINE__, #__VA_ARGS__, part, [&] { __VA_ARGS__; })

// Work launched with it waits until the gate is opened, at the latest by its destructor.
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
  // Waits until a stream has reached the gate.
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

// Runs the tests with these names, or all, each in its own child process. The child calls `ended` after the test.
// Returns the program's exit status.
int run(int count, char** names, void (*ended)() = nullptr);

}  // namespace testing
