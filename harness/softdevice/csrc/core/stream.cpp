#include "stream.h"

#include <pthread.h>
#include <signal.h>

#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include "capture.h"
#include "device.h"
#include "faults.h"
#include "process.h"

namespace soft {

namespace {

thread_local bool stream_thread = false;
std::atomic<int> threads{0};

// CPU kernels run on it, and glibc takes thread-local storage from it too.

// Starts a detached thread that takes no signal but its own faults: the program's handlers are for the program's own
// threads.
void start_thread(void* (*begin)(void*), void* argument) {
  const auto check = [](int status, const char* what) {
    if (status != 0) throw std::system_error(status, std::generic_category(), what);
  };
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&blocked, own);
  pthread_attr_t attributes;
  check(pthread_attr_init(&attributes), "pthread_attr_init");
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  pthread_t thread;
  const int status = pthread_create(&thread, &attributes, begin, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  check(status, "cannot start a stream's thread");
}

}  // namespace

bool Mark::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Mark::wait() const {
  if (captured_) throw Failure(Code::capture, "cannot wait for an event that was recorded in a capture");
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

Mark::Clock::time_point Mark::time() const {
  const std::lock_guard lock(mutex_);
  if (!done_) throw Failure(Code::invalid, "an event that is not done has no time");
  return time_;
}

void Mark::finish() {
  const std::lock_guard lock(mutex_);
  done_ = true;
  time_ = Clock::now();
  changed_.notify_all();
}

Stream::Stream(Device& device, std::int64_t id, Priority priority) : device_(device), id_(id), priority_(priority) {
  start_thread(begin, this);
  threads.fetch_add(1, std::memory_order_relaxed);  // here, so that none is counted late
}

void* Stream::begin(void* stream) {
  stream_thread = true;
  auto& self = *static_cast<Stream*>(stream);
  const std::string name = "soft-" + std::to_string(self.device_.index()) + "-" + std::to_string(self.id_);
#ifdef __APPLE__
  pthread_setname_np(name.c_str());
#else
  pthread_setname_np(pthread_self(), name.c_str());
#endif
  self.serve();
  return nullptr;
}

void Stream::launch(const char* name, Work work) {
  device_.check();
  if (strikes(Fault::launch_kills_process)) std::abort();
  if (strikes(Fault::device_lost)) {
    device_.fail(Code::lost, "the device was lost at the launch of " + std::string(name));
    device_.check();
  }
  std::unique_lock lock(mutex_);
  if (capture_) {
    tail_ = capture_->state_->add(name, std::move(work), tail_);
    return;
  }
  Item item{name, std::move(work), nullptr};
  if (strikes(Fault::launch_hangs)) {
    item.work = pause_for_ever;
  } else if (strikes(Fault::slow)) {
    item.work = [work = std::move(item.work)] {
      const auto begin = Mark::Clock::now();
      work();
      pause_for((Mark::Clock::now() - begin) * 9 + std::chrono::milliseconds(1));
    };
  }
  if (!held_ && !injected(Fault::wrong_stream_order)) {
    push(std::move(item));
  } else if (!held_) {
    // Nothing that can be seen from outside comes before its successor, or before it is asked for by a mark.
    held_ = std::move(item);
  } else if (strikes(Fault::wrong_stream_order)) {
    push(std::move(item));
    flush();
  } else {
    flush();
    held_ = std::move(item);
  }
}

std::shared_ptr<Mark> Stream::mark() {
  check_not_forked();
  auto mark = std::make_shared<Mark>();
  const std::lock_guard lock(mutex_);
  if (capture_) {
    mark->capture_ = capture_;
    mark->node_ = tail_;
    mark->captured_ = true;
    return mark;
  }
  flush();
  if (idle()) {
    mark->finish();
  } else {
    push({"mark", nullptr, mark});
  }
  return mark;
}

std::shared_ptr<Mark> Stream::fence() {
  check_not_forked();
  const std::lock_guard lock(mutex_);
  flush();
  if (idle()) return nullptr;
  auto mark = std::make_shared<Mark>();
  push({"fence", nullptr, mark});
  return mark;
}

void Stream::wait(const std::shared_ptr<Mark>& mark) {
  check_not_forked();
  if (mark->captured_) {
    const auto capture = mark->capture_.lock();
    if (!capture) throw Failure(Code::capture, "cannot wait for an event of a capture that has ended");
    Capture::State& state = *capture->state_;
    if (id_ == Device::default_stream) state.refuse("the default stream cannot be captured, but waits for a capture");
    state.admit(device_);
    const std::lock_guard lock(mutex_);
    if (!capture_) {
      state.join(*this);
      capture_ = capture;
      tail_ = mark->node_;
    } else if (capture_ == capture) {
      tail_ = state.follow(tail_, mark->node_);
    } else {
      const std::string why = "a stream of one capture waits for an event of another";
      capture_->state_->invalidate(why);
      state.refuse(why);
    }
    return;
  }
  const std::lock_guard lock(mutex_);
  if (capture_) capture_->state_->refuse("a captured stream waits for an event that is not of its capture");
  if (strikes(Fault::wait_ignored) || mark->done()) return;
  flush();
  push({"wait", [mark] { mark->wait(); }, nullptr});
}

bool Stream::query() {
  device_.check();
  if (const auto capture = this->capture()) capture->state_->refuse("asks for the state of a stream that is captured");
  forbid_while_capturing("a stream's query");
  const std::lock_guard lock(mutex_);
  flush();
  return idle();
}

void Stream::synchronize() {
  device_.check();
  if (const auto capture = this->capture()) capture->state_->refuse("waits for a stream that is captured");
  forbid_while_capturing("a stream's synchronize");
  if (!strikes(Fault::synchronize_early)) {
    if (const auto mark = fence()) mark->wait();
  }
  device_.check();
}

std::shared_ptr<Capture> Stream::capture() const {
  check_not_forked();
  const std::lock_guard lock(mutex_);
  return capture_;
}

void Stream::push(Item item) {
  // A thread that is awake looks again before it sleeps; one that was sent for already needs no second call.
  const bool asleep = !busy_ && queue_.empty();
  queue_.push_back(std::move(item));
  ++pushed_;
  if (asleep) changed_.notify_one();
}

void Stream::flush() {
  if (held_) {
    push(std::move(*held_));
    held_.reset();
  }
}

bool Stream::idle() const { return finished_.load(std::memory_order_acquire) == pushed_; }

void Stream::serve() {
  std::deque<Item> batch;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      busy_ = false;
      changed_.wait(lock, [this] { return !queue_.empty(); });
      batch.swap(queue_);
      busy_ = true;
    }
    for (; !batch.empty(); batch.pop_front()) run(batch.front());
  }
}

void Stream::run(Item& item) {
  if (item.work && !ending() && !device_.failure()) {
    try {
      item.work();
    } catch (const Failure& failure) {
      device_.fail(failure.code, std::string(item.name) + ": " + failure.what());
    } catch (const std::exception& error) {
      device_.fail(Code::assertion, std::string(item.name) + ": " + error.what());
    } catch (...) {
      device_.fail(Code::assertion, std::string(item.name) + ": an exception that is no std::exception");
    }
  }
  item.work = nullptr;  // what it holds is gone before anybody hears that it is done
  finished_.fetch_add(1, std::memory_order_release);
  if (item.mark) item.mark->finish();
}

bool in_stream_thread() { return stream_thread; }

void sleep_in_stream(std::chrono::nanoseconds duration) { pause_for(duration); }

int thread_count() { return threads.load(std::memory_order_relaxed); }

}  // namespace soft
