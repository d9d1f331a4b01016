// Queues of work that a fixed pool of threads serves in order, and the marks that tell how far a queue has come.
//
// A queue that waits for a mark takes no thread: the mark puts it back among the ready ones when it is finished.
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

// What it throws ends the process: who pushes it catches.
using Task = std::function<void()>;

constexpr std::chrono::hours for_ever(24 * 365 * 100);

class Queue;
class Pool;

// A moment: done once all that was before it is.
class Mark {
 public:
  using Clock = std::chrono::steady_clock;

  Mark() = default;
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  bool done() const { return done_.load(std::memory_order_acquire); }
  void wait() const;  // blocks the calling thread
  // When it was finished. Only for one that is done.
  Clock::time_point time() const { return time_; }
  void finish();  // at most once

 private:
  friend class Queue;
  // Whether the queue is to be made ready when the mark is finished; false if it is done already.
  bool park(const std::shared_ptr<Queue>& queue);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> done_{false};
  Clock::time_point time_{};
  std::vector<std::shared_ptr<Queue>> parked_;
};

// One step of a queue. The fields are used in this order, each if it is there.
struct Item {
  std::shared_ptr<Mark> wait;  // the step begins after this mark
  Task task;
  std::shared_ptr<Mark> mark;  // finished after the task
};

class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // Ready queues of a smaller `rank` are served first. Must be made by make_shared.
  Queue(Pool& pool, int rank) : pool_(pool), rank_(rank) {}
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void push(Item item);
  void push(std::vector<Item> items);  // nothing comes between them
  // A mark behind all that was pushed so far; null when nothing is left to do.
  std::shared_ptr<Mark> fence();
  // Whether nothing is left to do: true for whoever has seen the last mark done, and where it is true all marks are.
  bool idle() const;

 private:
  friend class Mark;
  friend class Pool;
  void ready();
  void serve();   // in a thread of the pool
  bool refill();  // whether there is a next item; otherwise somebody else may serve from now on

  Pool& pool_;
  const int rank_;
  std::mutex mutex_;
  mutable std::mutex finishing_;  // held while an item is counted and its mark finished
  std::deque<Item> items_;
  std::deque<Item> batch_;  // taken from `items_`; only for the thread that serves
  bool scheduled_ = false;  // ready, parked, or served
  std::atomic<std::uint64_t> pushed_{0}, finished_{0};
};

// Its threads start when the first work comes, all at once, and live as long as the process.
class Pool {
 public:
  // The pool must live as long as the process. `name` is the start of its threads' names, at most 11 characters.
  Pool(const char* name, int threads);

  // Each thread calls this first. A library that allocates memory for each thread that uses it can do so here: then it
  // is allocated at a known time, and not whenever a thread happens to be the one that takes some work. To be set
  // before the first work comes.
  void at_start(std::function<void()> call) { at_start_ = std::move(call); }

  // Starts the threads unless that was done, and returns once each has made its first call. Throws std::system_error.
  void start();
  int started() const { return started_.load(std::memory_order_relaxed); }

  // For the end of a process: drops what is queued, and returns once no thread runs anything, or after `patience`.
  void abandon(std::chrono::milliseconds patience);
  bool abandoned() const { return abandoned_.load(std::memory_order_acquire); }
  // Does nothing for that long; cut short by `abandon`.
  void pause(std::chrono::nanoseconds duration);

 private:
  friend class Queue;
  static void* begin(void* pool);
  void start(std::unique_lock<std::mutex>& lock);
  void add(int rank, std::shared_ptr<Queue> queue);
  // Whether a thread that serves a queue of this rank should put it back, for one that has waited.
  bool wanted(int rank) const;
  void serve();

  const char* const name_;
  const int threads_;
  std::function<void()> at_start_;
  std::mutex mutex_;
  std::condition_variable begun_;    // a thread has made its first call
  std::condition_variable changed_;  // a queue is ready
  std::condition_variable resting_;  // no thread runs anything
  std::condition_variable ended_;    // the pool is abandoned
  std::map<int, std::deque<std::shared_ptr<Queue>>> ready_;
  int busy_ = 0, begun_threads_ = 0;
  std::atomic<int> started_{0};
  std::atomic<int> first_ready_;  // the smallest rank that is ready, a large one if none is
  std::atomic<int> free_{0};      // threads that wait for work
  std::atomic<bool> abandoned_{false};
};

// True in a thread of a pool.
bool in_pool_thread();

}  // namespace work
