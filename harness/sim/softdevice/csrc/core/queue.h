// Queues of work that a fixed pool of threads runs in order, and marks at positions in a queue.
//
// A queue that waits for a mark occupies no thread. The mark makes it ready again when it finishes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace work {

// An exception of a task ends the process, so tasks must catch theirs.
using Task = std::function<void()>;

constexpr std::chrono::hours for_ever(24 * 365 * 100);

// When a pool begins work that may begin. What a program may rely on is the same in each order.
//
// `earliest` and `latest` show the effect of an order that the program forgot: work that should have waited runs before
// the host goes on, and work that should have been waited for has not begun.
enum class Order {
  soon,      // as soon as a thread is free
  earliest,  // at once: a push returns when the work is done, unless it waits for a mark, or takes long
  latest,    // once a thread waits for it or for work behind it, asks whether it is done, or `longest_delay` has passed
  reversed,  // as `latest`, and of queues that are waited for together the newest begins first
};

// Work that nobody waits for begins after this time, as the host may wait for its effect alone.
constexpr std::chrono::milliseconds longest_delay(100);
// A push in the order `earliest` returns after this time at the latest, as the work may need what the host does next.
constexpr std::chrono::milliseconds longest_push(20);

class Queue;
class Pool;

// A point in a queue: done once all items before it are.
class Mark {
 public:
  using Clock = std::chrono::steady_clock;

  Mark() = default;
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  bool done() const { return done_.load(std::memory_order_acquire); }
  void wait() const;  // blocks the calling thread
  // Returns whether it is done. If not, work that the pool holds back begins, so that a loop of polls ends.
  bool poll() const;
  // Lets the work before it begin, if the pool holds it back.
  void demand() const;
  // Returns the time when it finished. Only for a mark that is done.
  Clock::time_point time() const { return time_; }
  void finish();  // may be called once

  std::shared_ptr<const void> attached;  // what the owner of the mark attaches to it before others get it

 private:
  friend class Queue;
  // Makes the queue ready when the mark finishes; returns false if it is already done.
  bool park(const std::shared_ptr<Queue>& queue);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> done_{false};
  Clock::time_point time_{};
  std::vector<std::shared_ptr<Queue>> parked_;
  // If the pool may hold work back: the queue of the mark, and the number of its items up to the mark.
  std::weak_ptr<Queue> queue_;
  std::uint64_t place_ = 0;
};

// One step of a queue: wait, then run the task, then finish the mark. Empty fields are skipped.
struct Item {
  std::shared_ptr<Mark> wait;  // the step begins after this mark
  Task task;
  std::shared_ptr<Mark> mark;  // finished after the task
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // Ready queues with a smaller `rank` are served first. Must be created with make_shared.
  Queue(Pool& pool, int rank) : pool_(pool), rank_(rank) {}
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void push(Item item);
  void push(std::vector<Item> items);  // contiguous: no other item comes between them
  // Returns a mark after all items so far; null if none is left.
  std::shared_ptr<Mark> fence();
  // Returns whether no work is left. It is true after the last mark is seen as done, and if it is true, all marks are
  // done.
  bool idle() const;
  // Returns whether it is idle. If not, work that the pool holds back begins, so that a loop of polls ends.
  bool poll();

 private:
  friend class Mark;
  friend class Pool;
  void ready();
  void serve();         // in a thread of the pool
  bool refill();        // whether there is an item that may begin; if not, another thread may serve the queue
  void add(Item item);  // the caller holds the mutex
  void begin(std::unique_lock<std::mutex> lock);  // has the queue served, or held back, after items were added
  void demand(std::uint64_t place);               // lets the items up to there begin
  void release();                                 // lets all items begin, after the delay
  void settle() const;  // returns once the queue is idle or waits for a mark, or after `longest_push`

  Pool& pool_;
  const int rank_;
  std::mutex mutex_;
  mutable std::mutex finishing_;  // held while an item is counted and its mark finishes
  std::deque<Item> items_;
  std::deque<Item> batch_;  // taken from `items_`; only the serving thread uses it
  bool scheduled_ = false;  // ready, parked, or being served
  bool held_ = false;       // the pool lets the items begin after a delay
  std::atomic<bool> parked_{false};
  std::atomic<std::uint64_t> pushed_{0}, finished_{0};
  std::uint64_t demanded_ = 0;  // the number of items that may begin, if the pool holds work back
};

// A pool of threads. They all start with the first work, and live until the process ends.
class Pool {
 public:
  // The pool must live until the process ends. `name` is the prefix of its threads' names, at most 11 characters.
  Pool(const char* name, int threads);

  // Each thread calls this first. A library that allocates memory per thread can do so here: at a known time, not when
  // a thread happens to take its first work. Must be set before the first work.
  void at_start(std::function<void()> call) { at_start_ = std::move(call); }

  // Must be set before the first work. `delay`, `push`: as `longest_delay` and `longest_push`.
  void set_order(Order order, Mark::Clock::duration delay = longest_delay, Mark::Clock::duration push = longest_push) {
    order_ = order;
    longest_delay_ = delay;
    longest_push_ = push;
  }
  Order order() const { return order_; }
  // Whether work begins once it is demanded.
  bool holds_back() const { return order_ == Order::latest || order_ == Order::reversed; }

  // Starts the threads unless they are running, and returns once each has made its first call. Throws
  // std::system_error.
  void start();
  int started() const { return started_.load(std::memory_order_relaxed); }

  // For the end of a process: drops queued work, and returns once no thread runs work, or after `patience`.
  void abandon(std::chrono::milliseconds patience);
  bool abandoned() const { return abandoned_.load(std::memory_order_acquire); }
  // Sleeps for that long; `abandon` interrupts it.
  void pause(std::chrono::nanoseconds duration);

 private:
  friend class Queue;
  static void* begin(void* pool);
  void start(std::unique_lock<std::mutex>& lock);
  void add(int rank, std::shared_ptr<Queue> queue);
  void hold(std::shared_ptr<Queue> queue);
  void await_work(std::unique_lock<std::mutex>& lock);
  // Whether a thread that serves a queue of this rank should requeue it in favour of a waiting one.
  bool wanted(int rank) const;
  void serve();

  const char* const name_;
  const int threads_;
  std::function<void()> at_start_;
  Order order_ = Order::soon;
  Mark::Clock::duration longest_delay_ = longest_delay, longest_push_ = longest_push;
  std::mutex mutex_;
  std::condition_variable begun_;    // a thread has made its first call
  std::condition_variable changed_;  // a queue is ready
  std::condition_variable resting_;  // no thread runs work
  std::condition_variable ended_;    // the pool is abandoned
  std::map<int, std::deque<std::shared_ptr<Queue>>> ready_;
  std::deque<std::pair<Mark::Clock::time_point, std::shared_ptr<Queue>>> held_;  // and when they begin at the latest
  int busy_ = 0, begun_threads_ = 0;
  std::atomic<int> started_{0};
  std::atomic<int> first_ready_;  // the smallest ready rank; a large number if there is none
  std::atomic<int> free_{0};      // threads waiting for work
  std::atomic<bool> abandoned_{false};
};

// Returns true in a thread of a pool.
bool in_pool_thread();

}  // namespace work
