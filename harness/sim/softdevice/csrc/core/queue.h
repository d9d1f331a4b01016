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

 private:
  friend class Mark;
  friend class Pool;
  void ready();
  void serve();   // in a thread of the pool
  bool refill();  // whether there is a next item; if not, another thread may serve the queue

  Pool& pool_;
  const int rank_;
  std::mutex mutex_;
  mutable std::mutex finishing_;  // held while an item is counted and its mark finishes
  std::deque<Item> items_;
  std::deque<Item> batch_;  // taken from `items_`; only the serving thread uses it
  bool scheduled_ = false;  // ready, parked, or being served
  std::atomic<std::uint64_t> pushed_{0}, finished_{0};
};

// A pool of threads. They all start with the first work, and live until the process ends.
class Pool {
 public:
  // The pool must live until the process ends. `name` is the prefix of its threads' names, at most 11 characters.
  Pool(const char* name, int threads);

  // Each thread calls this first. A library that allocates memory per thread can do so here: at a known time, not when
  // a thread happens to take its first work. Must be set before the first work.
  void at_start(std::function<void()> call) { at_start_ = std::move(call); }

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
  // Whether a thread that serves a queue of this rank should requeue it in favour of a waiting one.
  bool wanted(int rank) const;
  void serve();

  const char* const name_;
  const int threads_;
  std::function<void()> at_start_;
  std::mutex mutex_;
  std::condition_variable begun_;    // a thread has made its first call
  std::condition_variable changed_;  // a queue is ready
  std::condition_variable resting_;  // no thread runs work
  std::condition_variable ended_;    // the pool is abandoned
  std::map<int, std::deque<std::shared_ptr<Queue>>> ready_;
  int busy_ = 0, begun_threads_ = 0;
  std::atomic<int> started_{0};
  std::atomic<int> first_ready_;  // the smallest ready rank; a large number if there is none
  std::atomic<int> free_{0};      // threads waiting for work
  std::atomic<bool> abandoned_{false};
};

// Returns true in a thread of a pool.
bool in_pool_thread();

}  // namespace work
