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
