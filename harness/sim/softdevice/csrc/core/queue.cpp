#include "queue.h"

#include <pthread.h>
#include <sched.h>
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
  demand();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done(); });
}

bool Mark::poll() const {
  if (done()) return true;
  demand();
  return false;
}

void Mark::demand() const {
  if (const auto queue = queue_.lock()) queue->demand(place_);
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
  std::unique_lock lock(mutex_);
  add(std::move(item));
  begin(std::move(lock));
}

void Queue::push(std::vector<Item> items) {
  if (items.empty()) return;
  std::unique_lock lock(mutex_);
  for (Item& item : items) add(std::move(item));
  begin(std::move(lock));
}

void Queue::add(Item item) {
  const std::uint64_t place = pushed_.fetch_add(1, std::memory_order_release) + 1;
  if (item.mark && pool_.holds_back()) {
    item.mark->queue_ = weak_from_this();
    item.mark->place_ = place;
  }
  items_.push_back(std::move(item));
}

void Queue::begin(std::unique_lock<std::mutex> lock) {
  if (pool_.holds_back()) {
    const bool hold = !scheduled_ && !std::exchange(held_, true);
    lock.unlock();
    if (hold) pool_.hold(shared_from_this());
    return;
  }
  const bool scheduled = std::exchange(scheduled_, true);
  lock.unlock();
  if (!scheduled) ready();
  if (pool_.order() == Order::earliest && !in_pool_thread()) settle();
}

void Queue::demand(std::uint64_t place) {
  {
    const std::lock_guard lock(mutex_);
    if (place <= demanded_) return;
    demanded_ = place;
    if (std::exchange(scheduled_, true)) return;
  }
  ready();
}

void Queue::release() {
  std::uint64_t all;
  {
    const std::lock_guard lock(mutex_);
    held_ = false;
    all = pushed_.load(std::memory_order_relaxed);
  }
  demand(all);
}

void Queue::settle() const {
  const auto end = Mark::Clock::now() + pool_.longest_push_;
  while (!idle() && !parked_.load(std::memory_order_acquire) && Mark::Clock::now() < end) sched_yield();
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

bool Queue::poll() {
  if (idle()) return true;
  if (pool_.holds_back()) demand(pushed_.load(std::memory_order_acquire));
  return false;
}

void Queue::ready() {
  parked_.store(false, std::memory_order_release);
  pool_.add(rank_, shared_from_this());
}

void Queue::serve() {
  while (refill()) {
    if (const auto wait = batch_.front().wait; wait && !pool_.abandoned()) {
      wait->demand();
      parked_.store(true, std::memory_order_release);
      // Once the queue is parked, another thread may serve it before this one returns.
      if (wait->park(shared_from_this())) return;
      parked_.store(false, std::memory_order_release);
    }
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
  const bool holds_back = pool_.holds_back();
  if (!batch_.empty() && !holds_back) return true;
  std::unique_lock lock(mutex_);
  if (batch_.empty()) batch_.swap(items_);
  const bool more = !batch_.empty();
  scheduled_ = more && (!holds_back || finished_.load(std::memory_order_relaxed) < demanded_);
  if (more && !scheduled_ && !std::exchange(held_, true)) {
    lock.unlock();
    pool_.hold(shared_from_this());
    return false;
  }
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

void Pool::hold(std::shared_ptr<Queue> queue) {
  std::unique_lock lock(mutex_);
  start(lock);
  held_.emplace_back(Mark::Clock::now() + longest_delay_, std::move(queue));
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
    while (ready_.empty()) await_work(lock);
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

// Waits for work, or lets work begin that was held back for long enough. Returns after any change.
void Pool::await_work(std::unique_lock<std::mutex>& lock) {
  if (!held_.empty() && held_.front().first <= Mark::Clock::now()) {
    auto queue = std::move(held_.front().second);
    held_.pop_front();
    lock.unlock();
    queue->release();
    queue.reset();
    lock.lock();
    return;
  }
  free_.fetch_add(1, std::memory_order_relaxed);
  if (held_.empty()) {
    changed_.wait(lock);
  } else {
    changed_.wait_until(lock, held_.front().first);
  }
  free_.fetch_sub(1, std::memory_order_relaxed);
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
