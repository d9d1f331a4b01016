// Queues, their marks, and the pool of threads that serves them.

#include "../queue.h"

#include <atomic>
#include <set>
#include <string>
#include <thread>

#include "check.h"

namespace soft::testing {

namespace {

using work::Mark;
using work::Pool;
using work::Queue;

// Pools must live until the process ends.
Pool& new_pool(int threads) { return *new Pool("test", threads); }

std::shared_ptr<Queue> new_queue(Pool& pool, int rank = 0) { return std::make_shared<Queue>(pool, rank); }

void push(Queue& queue, work::Task task) { queue.push(work::Item{nullptr, std::move(task), nullptr}); }

// A pool in which no time decides, unless `delay` says so.
Pool& new_pool(int threads, work::Order order, Mark::Clock::duration delay = std::chrono::hours(1)) {
  Pool& pool = new_pool(threads);
  pool.set_order(order, delay, std::chrono::hours(1));
  return pool;
}

void drain(Queue& queue) {
  if (const auto mark = queue.fence()) mark->wait();
}

// Work that waits until it is released.
struct Held {
  std::shared_ptr<Mark> reached = std::make_shared<Mark>(), open = std::make_shared<Mark>();
  work::Task task() {
    return [reached = reached, open = open] {
      reached->finish();
      open->wait();
    };
  }
};

}  // namespace

TEST(queued_work_runs_in_order_in_a_thread_of_the_pool) {
  Pool& pool = new_pool(2);
  const auto queue = new_queue(pool);
  EQUAL(pool.started(), 0);
  std::vector<int> ran;
  std::set<bool> inside;
  for (int i = 0; i < 1000; ++i) {
    push(*queue, [&ran, &inside, i] {
      ran.push_back(i);
      inside.insert(work::in_pool_thread());
    });
  }
  drain(*queue);
  EQUAL(ran.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EQUAL(ran[static_cast<std::size_t>(i)], i);
  CHECK(inside == std::set<bool>{true});
  CHECK(!work::in_pool_thread());
  EQUAL(pool.started(), 2);
}

TEST(a_queue_whose_last_mark_is_done_is_idle) {
  Pool& pool = new_pool(2);
  const auto queue = new_queue(pool);
  for (int i = 0; i < 5000; ++i) {
    auto mark = std::make_shared<Mark>();
    queue->push(work::Item{nullptr, [] {}, mark});
    mark->wait();
    CHECK(queue->idle());
    CHECK(queue->fence() == nullptr);
  }
}

TEST(the_marks_of_an_idle_queue_are_done) {
  Pool& pool = new_pool(2);
  const auto queue = new_queue(pool);
  for (int i = 0; i < 5000; ++i) {
    auto mark = std::make_shared<Mark>();
    queue->push(work::Item{nullptr, [] {}, mark});
    while (!queue->idle()) {
    }
    CHECK(mark->done());
  }
}

TEST(queues_that_wait_take_no_thread) {
  Pool& pool = new_pool(1);
  const auto gate = std::make_shared<Mark>();
  std::vector<std::shared_ptr<Queue>> waiting;
  std::atomic<int> ran{0};
  for (int i = 0; i < 50; ++i) {
    waiting.push_back(new_queue(pool));
    waiting.back()->push(work::Item{gate, [&ran] { ++ran; }, nullptr});
  }
  const auto other = new_queue(pool);
  push(*other, [] {});
  drain(*other);
  EQUAL(ran.load(), 0);
  CHECK(!waiting.front()->idle());
  gate->finish();
  for (const auto& queue : waiting) drain(*queue);
  EQUAL(ran.load(), 50);
}

TEST(a_queue_may_wait_for_another_of_a_pool_with_one_thread) {
  Pool& pool = new_pool(1);
  const auto first = new_queue(pool), second = new_queue(pool);
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    auto mark = std::make_shared<Mark>();
    second->push(work::Item{mark, [&order, i] { order.push_back(2 * i + 1); }, nullptr});
    first->push(work::Item{nullptr, [&order, i] { order.push_back(2 * i); }, mark});
    drain(*second);
  }
  for (int i = 0; i < 200; ++i) EQUAL(order[static_cast<std::size_t>(i)], i);
}

TEST(work_of_a_smaller_rank_goes_first) {
  Pool& pool = new_pool(1);
  const auto busy = new_queue(pool, 0), low = new_queue(pool, 0), high = new_queue(pool, -1);
  Held held;
  push(*busy, held.task());
  held.reached->wait();
  std::vector<std::string> order;
  for (int i = 0; i < 3; ++i) push(*low, [&order] { order.push_back("low"); });
  for (int i = 0; i < 3; ++i) push(*high, [&order] { order.push_back("high"); });
  held.open->finish();
  drain(*low);
  drain(*high);
  CHECK((order == std::vector<std::string>{"high", "high", "high", "low", "low", "low"}));
}

TEST(work_of_a_smaller_rank_goes_between_two_steps) {
  Pool& pool = new_pool(1);
  const auto low = new_queue(pool, 0), high = new_queue(pool, -1);
  Held held;
  push(*low, held.task());
  std::vector<std::string> order;
  push(*low, [&order] { order.push_back("low"); });
  held.reached->wait();
  push(*high, [&order] { order.push_back("high"); });
  held.open->finish();
  drain(*low);
  drain(*high);
  CHECK((order == std::vector<std::string>{"high", "low"}));
}

TEST(more_work_than_threads_is_shared_fairly) {
  Pool& pool = new_pool(1);
  const auto first = new_queue(pool), second = new_queue(pool);
  Held held;
  push(*first, held.task());
  held.reached->wait();
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) push(*first, [&order] { order.push_back(1); });
  for (int i = 0; i < 3; ++i) push(*second, [&order] { order.push_back(2); });
  held.open->finish();
  drain(*first);
  drain(*second);
  CHECK((order == std::vector<int>{2, 1, 2, 1, 2, 1}));
}

TEST(nothing_comes_between_items_that_are_pushed_together) {
  Pool& pool = new_pool(2);
  const auto queue = new_queue(pool);
  std::vector<int> ran;
  const auto pair = [&](int number) {
    std::vector<work::Item> items;
    items.push_back({nullptr, [&ran, number] { ran.push_back(number); }, nullptr});
    items.push_back({nullptr, [&ran, number] { ran.push_back(number); }, nullptr});
    return items;
  };
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) queue->push(pair(-i - 1));
  });
  for (int i = 0; i < 1000; ++i) queue->push(pair(i + 1));
  other.join();
  drain(*queue);
  EQUAL(ran.size(), 4000u);
  for (std::size_t i = 0; i < ran.size(); i += 2) EQUAL(ran[i], ran[i + 1]);
}

TEST(what_queued_work_holds_is_gone_before_it_counts_as_done) {
  Pool& pool = new_pool(2);
  const auto queue = new_queue(pool);
  for (int i = 0; i < 1000; ++i) {
    auto held = std::make_shared<int>(i);
    const std::weak_ptr<int> seen = held;
    push(*queue, [held = std::move(held)] {});
    drain(*queue);
    CHECK(seen.expired());
  }
}

TEST(a_queue_that_nobody_holds_ends_its_work) {
  Pool& pool = new_pool(1);
  Held held;
  const auto done = std::make_shared<Mark>();
  {
    const auto queue = new_queue(pool);
    push(*queue, held.task());
    queue->push(work::Item{nullptr, nullptr, done});
  }
  held.open->finish();
  done->wait();
}

TEST(each_thread_makes_its_first_call_before_any_work_runs) {
  Pool& pool = new_pool(3);
  std::atomic<int> calls{0};
  pool.at_start([&calls] { ++calls; });
  EQUAL(pool.started(), 0);
  const auto queue = new_queue(pool);
  int seen = 0;
  push(*queue, [&] { seen = calls; });
  drain(*queue);
  EQUAL(seen, 3);
  pool.start();
  EQUAL(calls.load(), 3);
  EQUAL(pool.started(), 3);
}

TEST(latest_begins_work_up_to_the_mark_that_is_waited_for) {
  Pool& pool = new_pool(2, work::Order::latest);
  const auto queue = new_queue(pool), other = new_queue(pool);
  std::vector<int> ran;
  push(*other, [&ran] { ran.push_back(1); });
  const auto first = other->fence();
  push(*other, [&ran] { ran.push_back(2); });
  queue->push(work::Item{first, [&ran] { ran.push_back(3); }, nullptr});
  drain(*queue);
  CHECK((ran == std::vector<int>{1, 3}));  // the rest of the other queue begins after a delay, unless it is asked for
  drain(*other);
  CHECK((ran == std::vector<int>{1, 3, 2}));
}

TEST(latest_begins_work_that_polls_ask_for) {
  Pool& pool = new_pool(2, work::Order::latest);
  const auto queue = new_queue(pool);
  const auto mark = std::make_shared<Mark>();
  queue->push(work::Item{nullptr, [] {}, mark});
  CHECK(!mark->poll());
  while (!mark->poll()) std::this_thread::yield();
  push(*queue, [] {});
  CHECK(!queue->poll());
  while (!queue->poll()) std::this_thread::yield();
}

TEST(latest_begins_work_after_a_delay) {
  Pool& pool = new_pool(1, work::Order::latest, std::chrono::milliseconds(1));
  const auto queue = new_queue(pool);
  for (int i = 0; i < 2; ++i) {
    std::atomic<bool> ran{false};
    push(*queue, [&ran] { ran = true; });
    while (!ran) std::this_thread::yield();
  }
}

TEST(earliest_ends_work_before_a_push_returns_unless_it_waits) {
  Pool& pool = new_pool(2, work::Order::earliest);
  const auto queue = new_queue(pool), waiting = new_queue(pool);
  const auto open = std::make_shared<Mark>();
  std::atomic<int> ran{0};
  waiting->push(work::Item{open, [&ran] { ran += 100; }, nullptr});
  for (int i = 1; i <= 100; ++i) {
    push(*queue, [&ran] { ++ran; });
    EQUAL(ran.load(), i);
  }
  open->finish();
  drain(*waiting);
  EQUAL(ran.load(), 200);
}

TEST(each_order_keeps_that_of_queues_and_marks) {
  for (const auto order : {work::Order::soon, work::Order::earliest, work::Order::latest, work::Order::reversed}) {
    Pool& pool = new_pool(3, order);
    std::vector<std::shared_ptr<Queue>> queues;
    for (int i = 0; i < 5; ++i) queues.push_back(new_queue(pool));
    std::vector<int> ran;  // no lock: each push waits for the one before it
    std::shared_ptr<Mark> last;
    for (int i = 0; i < 2000; ++i) {
      auto mark = std::make_shared<Mark>();
      queues[static_cast<std::size_t>(i * i % 5)]->push(work::Item{last, [&ran, i] { ran.push_back(i); }, mark});
      last = std::move(mark);
    }
    last->wait();
    EQUAL(ran.size(), 2000u);
    for (int i = 0; i < 2000; ++i) EQUAL(ran[static_cast<std::size_t>(i)], i);
  }
}

TEST(an_abandoned_pool_drops_work_and_cuts_pauses_short) {
  Pool& pool = new_pool(2);
  const auto queue = new_queue(pool);
  const auto begun = std::make_shared<Mark>();
  push(*queue, [&pool, begun] {
    begun->finish();
    pool.pause(std::chrono::hours(1));
  });
  bool ran = false;
  push(*queue, [&ran] { ran = true; });
  begun->wait();
  pool.abandon(std::chrono::minutes(5));
  CHECK(!ran);
  CHECK(pool.abandoned());
}

}  // namespace soft::testing
