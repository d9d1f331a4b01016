// Captures, graphs and their pools.

#include "../graph.h"

#include <functional>
#include <thread>

#include "../device.h"
#include "../event.h"
#include "check.h"

namespace soft::testing {

namespace {

constexpr PoolId own_pool{0, 0};

// Captures a graph of one node that counts its runs.
void capture_count(Graph& graph, Stream& stream, int& count, PoolId pool = own_pool) {
  graph.begin(stream, pool, CaptureMode::global);
  stream.launch("count", [&count] { ++count; });
  graph.end();
}

}  // namespace

TEST(captured_work_runs_at_each_replay_and_not_before) {
  Stream &stream = new_stream(), &other = new_stream();
  std::string order;
  Graph graph(false);
  graph.begin(stream, own_pool, CaptureMode::global);
  CHECK(stream.capture() != nullptr && other.capture() == nullptr);
  stream.launch("a", [&order] { order += "a"; });
  stream.launch("b", [&order] { order += "b"; });
  graph.end();
  CHECK(stream.capture() == nullptr);
  stream.synchronize();
  EQUAL(order, "");
  EQUAL(graph.size(), 2u);
  Gate gate;
  close_behind(other, gate);
  graph.replay(other);
  other.launch("between", [&order] { order += "-"; });
  graph.replay(other);
  EQUAL(order, "");
  gate.open();
  other.synchronize();
  EQUAL(order, "ab-ab");
  EQUAL(graph.dot(), "digraph soft {\n  n0 [label=\"a\"];\n  n1 [label=\"b\"];\n  n0 -> n1;\n}\n");
}

TEST(streams_join_a_capture_by_waiting_for_its_events) {
  Stream &origin = new_stream(0), &near_by = new_stream(0), &far = new_stream(1);
  int value = 1;
  Graph graph(true);
  Event fork(0, false), near_done(0, false), far_done(1, false);
  graph.begin(origin, own_pool, CaptureMode::global);
  origin.launch("double", [&value] { value *= 2; });
  fork.record(origin);
  fork.block(near_by);
  fork.block(far);
  CHECK(near_by.capture() == origin.capture() && far.capture() == origin.capture());
  near_by.launch("add", [&value] { value += 3; });
  far.launch("triple", [&value] { value *= 3; });
  near_done.record(near_by);
  far_done.record(far);
  near_done.block(origin);
  far_done.block(origin);
  origin.launch("last", [&value] { value += 1; });
  graph.end();
  CHECK(near_by.capture() == nullptr && far.capture() == nullptr);
  EQUAL(value, 1);
  graph.replay(origin);
  origin.synchronize();
  EQUAL(value, (1 * 2 + 3) * 3 + 1);
  EQUAL(graph.size(), 4u);
  CHECK(graph.dot().find("join") != std::string::npos);
}

TEST(a_stream_that_joined_must_come_back) {
  Stream &origin = new_stream(), &branch = new_stream();
  Event event(0, false);
  {
    Graph graph(false);
    graph.begin(origin, own_pool, CaptureMode::global);
    event.record(origin);
    event.block(branch);
    branch.launch("work", [] {});
    event.record(branch);
    event.block(origin);
    branch.launch("more", [] {});  // not joined back
    THROWS(Failure, "joined the capture", graph.end());
    CHECK(origin.capture() == nullptr && branch.capture() == nullptr);
    THROWS(Failure, "before its capture has ended", graph.replay(origin));
    // The graph has no capture, so it can capture again. A stream that joins without work need not be joined back.
    graph.begin(origin, own_pool, CaptureMode::global);
    event.record(origin);
    event.block(branch);
    graph.end();
    EQUAL(graph.size(), 0u);
    graph.replay(origin);
    origin.synchronize();
  }
  branch.synchronize();
}

TEST(captures_begin_only_where_they_may) {
  Stream& stream = new_stream();
  Graph graph(false), other(false);
  THROWS(Failure, "default stream", graph.begin(device(0).stream(0), own_pool, CaptureMode::global));
  THROWS(Failure, "not begun", graph.end());
  THROWS(Failure, "before its capture has ended", graph.instantiate());
  THROWS(Failure, "before its capture has ended", graph.replay(stream));
  graph.begin(stream, own_pool, CaptureMode::relaxed);
  THROWS(Failure, "captured already", other.begin(stream, own_pool, CaptureMode::relaxed));
  THROWS(Failure, "was not reset", graph.begin(new_stream(), own_pool, CaptureMode::relaxed));
  THROWS(Failure, "before its capture has ended", graph.replay(new_stream()));
  graph.end();
  THROWS(Failure, "was not reset", graph.begin(stream, own_pool, CaptureMode::relaxed));
  THROWS(Failure, "not begun", graph.end());
  graph.reset();
  THROWS(Failure, "before its capture has ended", graph.replay(stream));
  int count = 0;
  capture_count(graph, stream, count);
  graph.replay(stream);
  stream.synchronize();
  EQUAL(count, 1);
}

TEST(waiting_and_asking_are_not_permitted_in_a_capture) {
  Stream &stream = new_stream(), &other = new_stream();
  Event before(0, false), inside(0, false);
  before.record(other);
  struct Row {
    const char* part;
    std::function<void()> call;
  };
  const Row rows[] = {
      {"waits for a stream that is captured", [&] { stream.synchronize(); }},
      {"asks for the state of a stream", [&] { stream.query(); }},
      {"a stream's synchronize", [&] { other.synchronize(); }},
      {"a stream's query", [&] { other.query(); }},
      {"a device's synchronize", [&] { device(1).synchronize(); }},
      {"an event's query", [&] { before.query(); }},
      {"an event's synchronize", [&] { before.synchronize(); }},
      {"asks for the state of an event", [&] { inside.query(); }},
      {"waits for an event", [&] { inside.synchronize(); }},
      {"emptying the cache", [&] { device(0).allocator().empty(); }},
      {"not of its capture", [&] { before.block(stream); }},
      {"the default stream cannot be captured", [&] { inside.block(device(0).stream(0)); }},
  };
  for (const Row& row : rows) {
    Graph graph(false);
    graph.begin(stream, own_pool, CaptureMode::global);
    inside.record(stream);
    THROWS(Failure, row.part, row.call());
    THROWS(Failure, "the capture was invalidated", stream.launch("work", [] {}));
    THROWS(Failure, "the capture failed", graph.end());
    EQUAL(stream.query(), true);
  }
}

TEST(modes_say_whose_calls_a_capture_forbids) {
  Stream &stream = new_stream(), &other = new_stream();
  const auto elsewhere = [&other] {
    std::string what;
    std::thread([&] {
      try {
        other.synchronize();
      } catch (const Failure& failure) {
        what = failure.what();
      }
    }).join();
    return what;
  };
  for (const CaptureMode mode : {CaptureMode::relaxed, CaptureMode::thread_local_, CaptureMode::global}) {
    Graph graph(false);
    graph.begin(stream, own_pool, mode);
    EQUAL(elsewhere().empty(), mode != CaptureMode::global);
    if (mode == CaptureMode::relaxed) {
      other.synchronize();
      graph.end();
    } else {
      THROWS(Failure, "not permitted while a stream is captured", other.synchronize());
      THROWS(Failure, "the capture failed", graph.end());
    }
    other.synchronize();
  }
  Graph graph(false);
  graph.begin(stream, own_pool, CaptureMode::thread_local_);
  std::thread([&graph] { THROWS(Failure, "in another thread", graph.end()); }).join();
  graph.end();
}

TEST(two_captures_do_not_mix) {
  Stream &first = new_stream(), &second = new_stream();
  Graph one(false), two(false);
  one.begin(first, own_pool, CaptureMode::relaxed);
  two.begin(second, own_pool, CaptureMode::relaxed);
  Event event(0, false);
  event.record(first);
  THROWS(Failure, "waits for an event of another", event.block(second));
  THROWS(Failure, "waits for an event of another", one.end());
  THROWS(Failure, "waits for an event of another", two.end());
}

TEST(events_of_a_capture_mean_nothing_outside_of_it) {
  Stream &stream = new_stream(), &other = new_stream();
  Event event(0, true), again(0, true);
  {
    Graph graph(false);
    graph.begin(stream, own_pool, CaptureMode::global);
    event.record(stream);
    again.record(stream);
    graph.end();
    THROWS(Failure, "ended", event.block(other));
    THROWS(Failure, "recorded in a capture", event.query());
    THROWS(Failure, "recorded in a capture", event.synchronize());
    THROWS(Failure, "recorded in a capture", Event::elapsed(event, again));
  }
  THROWS(Failure, "ended", event.block(other));
  THROWS(Failure, "recorded in a capture", event.query());
  event.record(stream);
  event.synchronize();
  EQUAL(event.query(), true);
}

TEST(a_replay_cannot_be_captured) {
  Stream &stream = new_stream(), &other = new_stream();
  int count = 0;
  Graph graph(false), outer(false);
  capture_count(graph, stream, count);
  outer.begin(other, own_pool, CaptureMode::global);
  THROWS(Failure, "replay cannot be captured", graph.replay(other));
  THROWS(Failure, "the capture failed", outer.end());
}

TEST(a_graph_that_keeps_its_nodes_is_instantiated_when_first_needed) {
  Stream& stream = new_stream();
  int count = 0;
  Graph kept(true), other(false);
  capture_count(kept, stream, count);
  kept.replay(stream);
  kept.instantiate();
  kept.replay(stream);
  stream.synchronize();
  EQUAL(count, 2);
  EQUAL(kept.size(), 1u);
  capture_count(other, stream, count);
  THROWS(Failure, "does not keep its nodes", other.instantiate());
}

TEST(random_work_takes_new_numbers_at_each_replay) {
  Stream& stream = new_stream();
  const auto first = std::make_shared<Counter>(), second = std::make_shared<Counter>();
  first->set(100);
  std::vector<std::uint64_t> seen;
  Graph graph(false);
  graph.begin(stream, own_pool, CaptureMode::global);
  const auto capture = stream.capture();
  for (const auto& counter : {first, second, first}) {
    const std::uint64_t offset = capture->take(counter, 4);
    stream.launch("random", [&seen, key = counter.get(), offset] { seen.push_back(replay_place(key) + offset); });
  }
  graph.end();
  EQUAL(first->place(), 100u);
  Gate gate;
  close_behind(stream, gate);
  graph.replay(stream);
  graph.replay(stream);
  EQUAL(first->place(), 116u);  // advanced at the launch
  EQUAL(second->place(), 8u);
  gate.open();
  stream.synchronize();
  CHECK((seen == std::vector<std::uint64_t>{100, 0, 104, 108, 4, 112}));
  THROWS(std::logic_error, "outside of a graph's replay", replay_place(first.get()));
}

TEST(replay_place_is_known_within_a_replay_only) {
  Stream& stream = new_stream();
  Counter counter;
  stream.launch("random", [&counter] { replay_place(&counter); });
  THROWS(Failure, "outside of a graph's replay", stream.synchronize());
}

TEST(work_that_fails_in_a_replay_fails_the_device) {
  Stream& stream = new_stream();
  Graph graph(false);
  bool ran = false;
  graph.begin(stream, own_pool, CaptureMode::global);
  stream.launch("bad", [] { throw std::out_of_range("index 3"); });
  stream.launch("after", [&ran] { ran = true; });
  graph.end();
  graph.replay(stream);
  THROWS(Failure, "index 3", stream.synchronize());
  THROWS(Failure, "index 3", graph.replay(stream));
  graph.reset();
  CHECK(!ran);
}

TEST(reset_waits_for_replays_and_gives_the_pool_up) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  Graph graph(false);
  graph.begin(stream, own_pool, CaptureMode::global);
  allocator.free(allocator.allocate(1000, stream));
  int count = 0;
  stream.launch("count", [&count] {
    sleep_in_stream(std::chrono::milliseconds(20));  // a reset that does not wait would return long before
    ++count;
  });
  graph.end();
  EQUAL(allocator.snapshot().size(), 1u);
  CHECK(allocator.snapshot()[0].pool == graph.pool() && graph.pool() != own_pool);
  allocator.empty();
  EQUAL(allocator.snapshot().size(), 1u);  // the graph needs the memory
  Gate gate;
  close_behind(stream, gate);
  graph.replay(stream);
  graph.replay(stream);
  std::thread opener([&gate] { gate.open(); });
  graph.reset();
  EQUAL(count, 2);
  opener.join();
  allocator.empty();
  EQUAL(allocator.snapshot().size(), 0u);
  EQUAL(graph.size(), 0u);
  CHECK(graph.pool() == own_pool);
  graph.reset();
}

TEST(captured_allocations_come_from_the_captures_pool_and_are_reused_there) {
  Stream &stream = new_stream(), &branch = new_stream();
  Allocator& allocator = device(0).allocator();
  Block* const outside = allocator.allocate(1000, stream);
  void* const free_outside = Allocator::data(allocator.allocate(1000, stream));
  Graph one(false), two(false);
  Event event(0, false);
  one.begin(stream, own_pool, CaptureMode::global);
  Block* const first = allocator.allocate(1000, stream);
  void* const place = Allocator::data(first);
  allocator.free(first);
  Block* const second = allocator.allocate(1000, stream);
  CHECK(Allocator::data(second) == place && place != free_outside);
  event.record(stream);
  event.block(branch);
  Block* const in_branch = allocator.allocate(1000, branch);
  allocator.free(in_branch);
  one.end();
  int pools = 0;
  for (const SegmentView& segment : allocator.snapshot()) pools += segment.pool == one.pool() ? 1 : 0;
  EQUAL(pools, 2);  // one per stream
  allocator.free(second);
  // A second graph shares the pool and its memory.
  two.begin(stream, one.pool(), CaptureMode::global);
  Block* const shared = allocator.allocate(1000, stream);
  CHECK(Allocator::data(shared) == place);
  two.end();
  CHECK(two.pool() == one.pool());
  one.reset();
  allocator.empty();
  allocator.free(shared);
  allocator.empty();
  EQUAL(allocator.snapshot().size(), 3u);  // the second graph still retains it
  two.reset();
  allocator.free(outside);
  allocator.empty();
  EQUAL(allocator.snapshot().size(), 1u);  // the memory in use that was allocated outside
}

TEST(a_capture_on_two_devices_has_a_pool_on_each) {
  Stream &origin = new_stream(0), &far = new_stream(1);
  Graph graph(false);
  Event event(0, false);
  graph.begin(origin, own_pool, CaptureMode::global);
  event.record(origin);
  event.block(far);
  device(1).allocator().free(device(1).allocator().allocate(1000, far));
  graph.end();
  device(1).allocator().empty();
  EQUAL(device(1).allocator().snapshot().size(), 1u);
  graph.reset();
  device(1).allocator().empty();
  EQUAL(device(1).allocator().snapshot().size(), 0u);
}

TEST(blocks_that_captured_streams_use_are_kept_until_the_capture_ends) {
  Stream &stream = new_stream(), &user = new_stream(), &captured = new_stream();
  Allocator& allocator = device(0).allocator();
  Block* const used_there = allocator.allocate(1000, stream);
  Block* const used_elsewhere = allocator.allocate(1000, stream);
  void* const place = Allocator::data(used_there);
  void* const other_place = Allocator::data(used_elsewhere);
  allocator.record(used_there, captured);
  allocator.record(used_elsewhere, user);
  Graph graph(false);
  graph.begin(captured, own_pool, CaptureMode::relaxed);
  allocator.free(used_there);
  allocator.free(used_elsewhere);
  EQUAL(allocator.statistics().active[all].current, 1);
  Block* const first = allocator.allocate(1000, stream);
  CHECK(Allocator::data(first) == other_place);
  Block* const second = allocator.allocate(1000, stream);
  CHECK(Allocator::data(second) != place);
  graph.end();
  Block* const third = allocator.allocate(1000, stream);
  CHECK(Allocator::data(third) == place);
  for (Block* block : {first, second, third}) allocator.free(block);
}

TEST(a_graph_that_ends_within_its_capture_lets_its_streams_go) {
  Stream& stream = new_stream();
  {
    Graph graph(false);
    graph.begin(stream, own_pool, CaptureMode::global);
    stream.launch("work", [] {});
  }
  CHECK(stream.capture() == nullptr);
  stream.synchronize();
}

TEST(many_threads_capture_and_replay) {
  constexpr int threads_used = 4, rounds = 30;
  std::vector<std::thread> threads;
  std::vector<int> counts(threads_used, 0);
  const auto counter = std::make_shared<Counter>();
  for (int number = 0; number < threads_used; ++number) {
    threads.emplace_back([&, number] {
      Stream &stream = new_stream(), &branch = new_stream();
      Allocator& allocator = device(0).allocator();
      int& count = counts[static_cast<std::size_t>(number)];
      Event event(0, false);
      for (int i = 0; i < rounds; ++i) {
        Graph graph(i % 2 == 0);
        graph.begin(stream, own_pool, CaptureMode::thread_local_);
        Block* const block = allocator.allocate(1000, stream);
        auto* const data = static_cast<int*>(Allocator::data(block));
        stream.launch("write", [data] { *data = 1; });
        event.record(stream);
        event.block(branch);
        const auto offset = stream.capture()->take(counter, 2);
        branch.launch("add",
                      [data, offset, key = counter.get()] { *data += replay_place(key) + offset < 1u << 30 ? 1 : 0; });
        allocator.record(block, branch);
        event.record(branch);
        event.block(stream);
        stream.launch("read", [data, &count] { count += *data; });
        allocator.free(block);
        graph.end();
        for (int replay = 0; replay < 3; ++replay) graph.replay(stream);
        if (i % 3 == 0) stream.synchronize();
        graph.reset();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const int count : counts) EQUAL(count, rounds * 3 * 2);
  EQUAL(counter->place(), static_cast<std::uint64_t>(threads_used * rounds * 3 * 2));
  device(0).allocator().empty();
  EQUAL(device(0).allocator().snapshot().size(), 0u);
}

}  // namespace soft::testing
