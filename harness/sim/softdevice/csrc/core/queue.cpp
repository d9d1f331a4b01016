#include "queue.h"

#include <pthread.h>
#include <signal.h>

#include <limits>
#include <string>
#include <system_error>
#include <utility>

namespace work {

namespace {

constexpr std::size_t stack_bytes = std::size_t{2} << 20;  // the system adds a guard page
constexpr int none_ready = std::numeric_limits<int>::max();

thread_local bool pool_thread = false;

// Starts a detached thread that blocks all signals except its own faults, since the program's handlers are for the
// program's threads.
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
  check(status, "cannot start a thread for queued work");
}

}  // namespace

void Mark::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done(); });
}

void Mark::finish() {
  std::vector<std::shared_ptr<Queue>> parked;
  {
    const std::lock_guard lock(mutex_);
    time_ = Clock::now();
    done_.store(true, std::memory_order_release);
    parked.swap(parked_);
    changed_.notify_all();
  }
  for (const auto& queue : parked) queue->ready();
}

bool Mark::park(const std::shared_ptr<Queue>& queue) {
  if (done()) return false;
  const std::lock_guard lock(mutex_);
  if (done()) return false;
  parked_.push_back(queue);
  return true;
}

void Queue::push(Item item) {
  {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    pushed_.fetch_add(1, std::memory_order_release);
    if (std::exchange(scheduled_, true)) return;
  }
  ready();
}

void Queue::push(std::vector<Item> items) {
  if (items.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    pushed_.fetch_add(items.size(), std::memory_order_release);
    for (Item& item : items) items_.push_back(std::move(item));
    if (std::exchange(scheduled_, true)) return;
  }
  ready();
}

std::shared_ptr<Mark> Queue::fence() {
  if (idle()) return nullptr;
  auto mark = std::make_shared<Mark>();
  push({nullptr, nullptr, mark});
  return mark;
}

bool Queue::idle() const {
  if (finished_.load(std::memory_order_acquire) != pushed_.load(std::memory_order_acquire)) return false;
  // The last item is counted, but its mark may not be finished yet.
  const std::lock_guard lock(finishing_);
  return true;
}

void Queue::ready() { pool_.add(rank_, shared_from_this()); }

void Queue::serve() {
  while (refill()) {
    // Once the queue is parked, another thread may serve it before this one returns.
    if (const auto wait = batch_.front().wait; wait && !pool_.abandoned() && wait->park(shared_from_this())) return;
    Item& item = batch_.front();
    if (item.task && !pool_.abandoned()) item.task();
    item.task = nullptr;  // destroys the task's captures before anybody sees that it is done
    {
      const std::lock_guard lock(finishing_);
      finished_.fetch_add(1, std::memory_order_release);
      if (item.mark) item.mark->finish();
    }
    batch_.pop_front();
    if (pool_.wanted(rank_)) {
      if (refill()) ready();
      return;
    }
  }
}

bool Queue::refill() {
  if (!batch_.empty()) return true;
  const std::lock_guard lock(mutex_);
  batch_.swap(items_);
  scheduled_ = !batch_.empty();
  return scheduled_;
}

Pool::Pool(const char* name, int threads) : name_(name), threads_(threads), first_ready_(none_ready) {}

void* Pool::begin(void* pool) {
  pool_thread = true;
  static_cast<Pool*>(pool)->serve();
  return nullptr;
}

void Pool::start() {
  std::unique_lock lock(mutex_);
  start(lock);
}

void Pool::start(std::unique_lock<std::mutex>& lock) {
  if (started() != 0) return;
  for (int i = 0; i < threads_; ++i) {
    start_thread(begin, this);
    started_.fetch_add(1, std::memory_order_relaxed);  // counted here, so that none is counted late
  }
  begun_.wait(lock, [this] { return begun_threads_ == started(); });
}

void Pool::add(int rank, std::shared_ptr<Queue> queue) {
  std::unique_lock lock(mutex_);
  start(lock);
  ready_[rank].push_back(std::move(queue));
  if (rank < first_ready_.load(std::memory_order_relaxed)) first_ready_.store(rank, std::memory_order_relaxed);
  changed_.notify_one();
}

bool Pool::wanted(int rank) const {
  const int first = first_ready_.load(std::memory_order_relaxed);
  return first <= rank && first != none_ready && free_.load(std::memory_order_relaxed) == 0;
}

void Pool::serve() {
  static std::atomic<int> numbers{0};
  const std::string name = std::string(name_) + "-" + std::to_string(numbers.fetch_add(1));
#ifdef __APPLE__
  pthread_setname_np(name.c_str());
#else
  pthread_setname_np(pthread_self(), name.c_str());
#endif
  if (at_start_) at_start_();
  std::unique_lock lock(mutex_);
  ++begun_threads_;
  begun_.notify_all();
  while (true) {
    while (ready_.empty()) {
      free_.fetch_add(1, std::memory_order_relaxed);
      changed_.wait(lock);
      free_.fetch_sub(1, std::memory_order_relaxed);
    }
    const auto first = ready_.begin();
    auto queue = std::move(first->second.front());
    first->second.pop_front();
    if (first->second.empty()) ready_.erase(first);
    first_ready_.store(ready_.empty() ? none_ready : ready_.begin()->first, std::memory_order_relaxed);
    ++busy_;
    lock.unlock();
    queue->serve();
    queue.reset();
    lock.lock();
    if (--busy_ == 0) resting_.notify_all();
  }
}

void Pool::abandon(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  abandoned_.store(true, std::memory_order_release);
  ended_.notify_all();
  resting_.wait_for(lock, patience, [this] { return busy_ == 0 && ready_.empty(); });
}

void Pool::pause(std::chrono::nanoseconds duration) {
  const auto end = Mark::Clock::now() + duration;
  std::unique_lock lock(mutex_);
  ended_.wait_until(lock, end, [this] { return abandoned(); });
}

bool in_pool_thread() { return pool_thread; }

}  // namespace work
