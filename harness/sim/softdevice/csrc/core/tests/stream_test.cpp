// Streams, marks, events and devices.

#include "../stream.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "../event.h"
#include "../graph.h"
#include "../pinned.h"
#include "check.h"

namespace soft::testing {

TEST(work_runs_in_order_and_later_than_its_launch) {
  Stream& stream = new_stream();
  Gate gate;
  close_behind(stream, gate);
  std::vector<int> ran;
  for (int i = 0; i < 1000; ++i) stream.launch("work", [&ran, i] { ran.push_back(i); });
  EQUAL(stream.query(), false);
  EQUAL(ran.size(), 0u);
  gate.open();
  stream.synchronize();
  EQUAL(ran.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EQUAL(ran[static_cast<std::size_t>(i)], i);
}

TEST(a_stream_that_was_waited_for_has_nothing_left_to_do) {
  Stream& stream = new_stream();
  Event event(0, false);
  for (int i = 0; i < 2000; ++i) {
    stream.launch("work", [] {});
    if (i % 2 == 0) {
      stream.synchronize();
    } else {
      event.record(stream);
      event.synchronize();
    }
    EQUAL(stream.query(), true);
    CHECK(stream.fence() == nullptr);
  }
}

TEST(marks_are_done_when_all_before_them_is) {
  Stream& stream = new_stream();
  CHECK(stream.mark()->done());
  Gate first, second;
  close_behind(stream, first);
  const auto between = stream.mark();
  close_behind(stream, second);
  const auto last = stream.mark();
  CHECK(!between->done() && !last->done());
  THROWS(Failure, "has no time", between->time());
  first.open();
  between->wait();
  CHECK(between->done() && !last->done());
  second.open();
  last->wait();
  CHECK(between->time() <= last->time());
}

TEST(what_work_holds_is_gone_before_it_counts_as_done) {
  Stream& stream = new_stream();
  std::promise<bool> idle;
  // Runs in the stream's thread when the work is destroyed.
  const auto look = [&](int* held) {
    idle.set_value(stream.fence() == nullptr);
    delete held;
  };
  stream.launch("work", [held = std::shared_ptr<int>(new int(1), look)] {});
  CHECK(!idle.get_future().get());
  stream.synchronize();
}

TEST(streams_run_beside_each_other) {
  Stream &first = new_stream(), &second = new_stream();
  Gate gate;
  close_behind(first, gate);
  bool ran = false;
  second.launch("work", [&ran] { ran = true; });
  second.synchronize();
  CHECK(ran);
  EQUAL(first.query(), false);
}

TEST(streams_wait_for_events_across_devices) {
  Stream &first = new_stream(0), &second = new_stream(1);
  Gate gate;
  close_behind(first, gate);
  int value = 0;
  first.launch("write", [&value] { value = 7; });
  Event event(0, false);
  event.record(first);
  event.block(second);
  int seen = 0;
  second.launch("read", [&] { seen = value; });
  EQUAL(second.query(), false);
  gate.open();
  device(1).synchronize();
  EQUAL(seen, 7);
}

TEST(a_stream_waits_for_what_an_event_was_last_recorded_for_when_it_was_told_to) {
  Stream &first = new_stream(), &second = new_stream();
  Gate early, late;
  Event event(0, false);
  event.block(second);  // does not block: the event was never recorded
  EQUAL(second.query(), true);
  close_behind(first, early);
  event.record(first);
  event.block(second);
  close_behind(first, late);
  event.record(first);
  early.open();
  second.synchronize();
  EQUAL(event.query(), false);
  late.open();
  event.synchronize();
  EQUAL(event.query(), true);
}

TEST(events_tell_the_time_between_them) {
  Stream& stream = new_stream();
  Event begin(0, true), end(0, true), untimed(0, false), never(0, true);
  EQUAL(begin.query(), true);
  EQUAL(begin.recorded(), false);
  begin.record(stream);
  stream.launch("sleep", [] { sleep_in_stream(std::chrono::milliseconds(5)); });
  Gate gate;
  close_behind(stream, gate);
  end.record(stream);
  untimed.record(stream);
  THROWS(Failure, "not done yet", Event::elapsed(begin, end));
  gate.open();
  end.synchronize();
  CHECK(Event::elapsed(begin, end) >= 5.0);
  CHECK(Event::elapsed(end, begin) <= -5.0);
  THROWS(Failure, "without timing", Event::elapsed(begin, untimed));
  THROWS(Failure, "not recorded", Event::elapsed(begin, never));
  Event elsewhere(1, true);
  elsewhere.record(device(1).next_stream(Stream::Priority::normal));
  elsewhere.synchronize();
  THROWS(Failure, "two devices", Event::elapsed(begin, elsewhere));
  THROWS(Failure, "event of device 0 on a stream of device 1", begin.record(new_stream(1)));
}

TEST(the_first_failure_of_work_stays) {
  Stream &stream = new_stream(), &other = new_stream();
  Gate gate;
  close_behind(stream, gate);
  bool ran = false;
  stream.launch("take", []() { throw std::out_of_range("index 9 is out of bounds"); });
  stream.launch("after", [&ran] { ran = true; });
  const auto mark = stream.mark();
  Event event(0, false);
  event.record(stream);
  event.block(other);
  EQUAL(stream.query(), false);  // the error is not known yet
  gate.open();
  mark->wait();
  THROWS(Failure, "device 0: take: index 9 is out of bounds", stream.synchronize());
  THROWS(Failure, "index 9", stream.query());
  THROWS(Failure, "index 9", other.launch("work", [] {}));
  THROWS(Failure, "index 9", event.query());
  THROWS(Failure, "index 9", event.synchronize());
  THROWS(Failure, "index 9", device(0).synchronize());
  CHECK(!ran);
  device(0).fail(Code::lost, "later");
  CHECK(device(0).failure()->code == Code::assertion);
  new_stream(1).synchronize();
  device(0).drain();
}

TEST(a_failure_keeps_its_code_and_all_exceptions_are_failures) {
  new_stream(0).launch("work", [] { throw Failure(Code::lost, "gone"); });
  device(0).drain();
  CHECK(device(0).failure()->code == Code::lost);
  new_stream(1).launch("work", [] { throw 1; });
  device(1).drain();
  THROWS(Failure, "no std::exception", device(1).check());
}

TEST(an_events_wait_ends_when_what_it_waits_for_fails) {
  Stream &first = new_stream(0), &second = new_stream(1);
  Gate gate;
  close_behind(first, gate);
  first.launch("bad", [] { throw std::runtime_error("bad"); });
  Event event(0, false);
  event.record(first);
  event.block(second);
  bool ran = false;
  second.launch("work", [&ran] { ran = true; });
  gate.open();
  second.synchronize();
  CHECK(ran);
}

TEST(many_threads_launch_record_and_wait) {
  Stream &first = new_stream(), &second = new_stream(), &third = new_stream(1);
  constexpr int each = 500;
  long in_first = 0, in_second = 0;
  Event event(0, true);
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&] {
      for (int i = 0; i < each; ++i) {
        first.launch("first", [&] { ++in_first; });
        event.record(first);
        event.block(second);
        second.launch("second", [&] { ++in_second; });
        event.block(third);
        static_cast<void>(event.query());
        static_cast<void>(second.query());
        if (i % 100 == 0) second.synchronize();
        if (i % 100 == 50) device(1).synchronize();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  device(0).synchronize();
  device(1).synchronize();
  EQUAL(in_first, 4L * each);
  EQUAL(in_second, 4L * each);
}

TEST(work_of_one_stream_may_read_what_another_wrote_before_an_event) {
  // No locks, so that a sanitizer detects a missing order.
  Stream &writer = new_stream(), &reader = new_stream();
  Event written(0, false), read(0, false);
  long value = 0, sum = 0;
  for (int i = 0; i < 500; ++i) {
    writer.launch("write", [&value, i] { value = i; });
    written.record(writer);
    written.block(reader);
    reader.launch("read", [&] { sum += value; });
    read.record(reader);
    read.block(writer);
  }
  reader.synchronize();
  EQUAL(sum, 499L * 500 / 2);
}

TEST(a_device_has_65_streams_that_start_when_it_is_first_used) {
  EQUAL(device_count(), 2);
  EQUAL(pool().started(), 0);
  Device& own = device(0);
  EQUAL(own.awake(), false);
  EQUAL(own.streams().size(), 0u);
  own.synchronize();
  EQUAL(own.awake(), false);
  CHECK(own.stream(0).priority() == Stream::Priority::normal);
  EQUAL(own.awake(), true);
  EQUAL(own.streams().size(), 65u);
  EQUAL(device(1).awake(), false);
  EQUAL(own.stream(64).id(), 64);
  CHECK(own.stream(32).priority() == Stream::Priority::normal && own.stream(33).priority() == Stream::Priority::high);
  for (const std::int64_t id : {-1, 65}) THROWS(Failure, "expected an id from 0 to 64", own.stream(id));
  for (const int index : {-1, 2}) THROWS(Failure, "this process sees 2 devices", device(index));
}

TEST(streams_are_handed_out_in_turn) {
  for (std::int64_t i = 0; i < 70; ++i) {
    EQUAL(device(0).next_stream(Stream::Priority::normal).id(), 1 + i % 32);
    EQUAL(device(0).next_stream(Stream::Priority::high).id(), 33 + i % 32);
  }
}

TEST(each_thread_has_its_own_current_device_and_streams) {
  EQUAL(current_device(), 0);
  EQUAL(exchange_device(1), 0);
  THROWS(Failure, "this process sees 2", exchange_device(2));
  EQUAL(current_device(), 1);
  Stream& stream = new_stream(1);
  set_current_stream(stream);
  CHECK(&current_stream(1) == &stream);
  EQUAL(current_stream(0).id(), 0);
  THROWS(Failure, "this process sees 2", current_stream(7));
  std::thread([] {
    EQUAL(current_device(), 0);
    EQUAL(current_stream(1).id(), 0);
  }).join();
}

#ifdef __linux__
TEST(threads_have_names_and_leave_signals_alone) {
  device(1).stream(0).launch("work", [] {
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    if (sigismember(&blocked, SIGTERM) != 1 || sigismember(&blocked, SIGSEGV) != 0) throw std::runtime_error("signals");
    if (!work::in_pool_thread()) throw std::runtime_error("in_pool_thread");
  });
  CHECK(!work::in_pool_thread());
  device(1).synchronize();
  std::set<std::string> names;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) {
    std::string name;
    std::getline(std::ifstream("/proc/self/task/" + std::string(entry->d_name) + "/comm"), name);
    names.insert(name);
  }
  closedir(tasks);
  const int count = pool().started();
  CHECK(count > 1);
  for (int number = 0; number < count; ++number) EQUAL(names.count("soft-" + std::to_string(number)), 1u);
  static_cast<void>(device(0).stream(0));
  EQUAL(pool().started(), count);
}
#endif

TEST(a_child_of_a_process_that_used_a_device_is_told_so) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  Block* const block = allocator.allocate(1000, stream);
  void* const pinned = PinnedAllocator::get().allocate(1000);
  auto graph = std::make_unique<Graph>(false);
  graph->begin(stream, {0, 0}, CaptureMode::relaxed);
  const pid_t child = fork();
  if (child == 0) {
    int status = 0;
    try {
      const std::string part = "forked after its parent had used it";
      THROWS(Failure, part, device(0).stream(0));
      THROWS(Failure, part, device(1).stream(0));
      THROWS(Failure, part, stream.launch("work", [] {}));
      THROWS(Failure, part, stream.query());
      THROWS(Failure, part, stream.synchronize());
      THROWS(Failure, part, stream.mark());
      THROWS(Failure, part, device(0).synchronize());
      THROWS(Failure, part, allocator.allocate(1, stream));
      THROWS(Failure, part, allocator.empty());
      THROWS(Failure, part, PinnedAllocator::get().allocate(1));
      // Functions that destructors call are safe.
      allocator.free(block);
      allocator.record(block, stream);
      PinnedAllocator::get().free(pinned);
      graph.reset();
      abandon();
    } catch (const Failed& failed) {
      std::fprintf(stderr, "%s\n", failed.what());
      status = 1;
    }
    _exit(status);
  }
  int status = 0;
  EQUAL(waitpid(child, &status, 0), child);
  EQUAL(status, 0);
  graph->end();
  stream.synchronize();
}

TEST(abandon_drops_what_is_queued_and_cuts_sleeps_short) {
  Stream &first = new_stream(0), &second = new_stream(1);
  first.launch("sleep", [] { sleep_in_stream(std::chrono::hours(100)); });
  bool ran = false;
  first.launch("after", [&ran] { ran = true; });
  Event event(0, false);
  event.record(first);
  event.block(second);
  second.launch("after", [&ran] { ran = true; });
  abandon();
  CHECK(event.query() && first.query() && second.query());
  first.launch("later", [&ran] { ran = true; });
  first.synchronize();
  CHECK(!ran);
}

TEST(abandon_lets_running_work_end) {
  Stream& stream = new_stream();
  Gate gate;
  close_behind(stream, gate);
  gate.await();
  std::thread opener([&gate] { gate.open(); });
  abandon();
  CHECK(stream.query());
  opener.join();
}

}  // namespace soft::testing
