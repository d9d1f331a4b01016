// Environment variables, and faults.

#include "../faults.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <set>

#include "../allocator.h"
#include "../config.h"
#include "../event.h"
#include "../graph.h"
#include "check.h"

namespace soft::testing {

TEST(config_has_its_defaults) {
  const Config config = Config::parse(nullptr, nullptr, nullptr);
  EQUAL(config.memory, std::size_t{1} << 30);
  EQUAL(config.uuids.size(), 2u);
  EQUAL(config.uuids[1], "SOFT-1");
}

TEST(config_reads_sizes_with_suffixes) {
  EQUAL(Config::parse("1", "4194304", nullptr).memory, std::size_t{4} << 20);
  EQUAL(Config::parse("1", "4096KiB", nullptr).memory, std::size_t{4} << 20);
  EQUAL(Config::parse("1", " 3 MiB", nullptr).memory, std::size_t{3} << 20);
  EQUAL(Config::parse("1", "5GiB", nullptr).memory, std::size_t{5} << 30);
}

TEST(config_is_asynchronous_unless_it_is_told) {
  EQUAL(Config::parse("1", nullptr, nullptr).synchronous, false);
  EQUAL(Config::parse("1", nullptr, nullptr, nullptr, "1").synchronous, true);
  THROWS(std::invalid_argument, "SOFT_SYNCHRONOUS='yes': expected 0 or 1",
         Config::parse("1", nullptr, nullptr, nullptr, "yes"));
}

TEST(config_shows_devices_in_the_order_asked_for) {
  const auto visible = [](const char* text) {
    std::string all;
    for (const auto& uuid : Config::parse("4", nullptr, text).uuids) all += uuid + " ";
    return all;
  };
  EQUAL(visible(nullptr), "SOFT-0 SOFT-1 SOFT-2 SOFT-3 ");
  EQUAL(visible(""), "");
  EQUAL(visible("  "), "");
  EQUAL(visible("2"), "SOFT-2 ");
  EQUAL(visible("SOFT-3, 0"), "SOFT-3 SOFT-0 ");
}

TEST(config_names_what_it_cannot_read) {
  for (const char* count : {"", "0", "65", "two", "-1", "1.5", "99999999999999999999999"}) {
    THROWS(std::invalid_argument, "SOFT_DEVICE_COUNT='" + std::string(count), Config::parse(count, nullptr, nullptr));
  }
  for (const char* memory : {"", "MiB", "1MB", "0", "1MiB", "-4MiB", "20000000000000GiB"}) {
    THROWS(std::invalid_argument, "SOFT_DEVICE_MEMORY='" + std::string(memory), Config::parse("1", memory, nullptr));
  }
  for (const char* visible : {"2", "SOFT-2", "0,0", "0,SOFT-0", "0,", ",0", "soft-0", "-1"}) {
    THROWS(std::invalid_argument, "SOFT_VISIBLE_DEVICES='" + std::string(visible),
           Config::parse("2", nullptr, visible));
  }
}

TEST(a_bad_environment_is_told_where_a_device_is_used) {
  setenv("SOFT_INJECT", "no_such_fault", 1);
  EQUAL(device_count(), 0);
  THROWS(Failure, "SOFT_INJECT: fault 'no_such_fault': expected one of wait_ignored", device(0));
}

TEST(injections_are_read) {
  EQUAL(parse_injections("").size(), 0u);
  const auto injections =
      parse_injections("slow; event_early:0.25 ;block_given_twice,seed=7;device_lost:1,seed=18446744073709551615");
  EQUAL(injections.size(), 4u);
  CHECK(injections[0].fault == Fault::slow && injections[0].probability == 1.0 && injections[0].seed == 0);
  CHECK(injections[1].fault == Fault::event_early && injections[1].probability == 0.25);
  CHECK(injections[2].fault == Fault::block_given_twice && injections[2].seed == 7);
  CHECK(injections[3].probability == 1.0 && injections[3].seed == 18446744073709551615u);
}

TEST(injections_name_what_they_cannot_read) {
  for (const char* text : {"slo", "slow:", "slow:2", "slow:-1", "slow:nan", "slow:0.5x", "slow,seed", "slow,seed=",
                           "slow,seed=-1", "slow,seed=1.5", "slow,0.5", ":0.5", "slow;slow", "slow slow"}) {
    THROWS(std::invalid_argument, "expected", parse_injections(text));
  }
}

TEST(faults_strike_the_same_way_for_the_same_seed) {
  const auto draw = [](const char* text) {
    inject(parse_injections(text));
    std::string drawn;
    for (int i = 0; i < 1000; ++i) drawn += strikes(Fault::slow) ? '1' : '0';
    return drawn;
  };
  const auto ones = [](const std::string& drawn) { return std::count(drawn.begin(), drawn.end(), '1'); };
  const std::string first = draw("slow:0.3,seed=1");
  CHECK(ones(first) > 240 && ones(first) < 360);
  EQUAL(times_struck(Fault::slow), static_cast<std::uint64_t>(ones(first)));
  EQUAL(first, draw("slow:0.3,seed=1"));
  CHECK(first != draw("slow:0.3,seed=2"));
  EQUAL(ones(draw("slow")), 1000);
  EQUAL(ones(draw("slow:0")), 0);
  EQUAL(ones(draw("event_early")), 0);
}

TEST(every_fault_has_a_name) {
  std::set<std::string> names;
  for (int i = 0; i < static_cast<int>(Fault::count); ++i) names.insert(fault_name(static_cast<Fault>(i)));
  EQUAL(names.size(), static_cast<std::size_t>(Fault::count));
  EQUAL(std::string(fault_name(Fault::device_lost)), "device_lost");
}

// The effect of each fault, and its absence without the fault.

TEST(fault_wait_ignored) {
  for (const bool broken : {false, true}) {
    inject(parse_injections(broken ? "wait_ignored" : ""));
    Stream &first = new_stream(), &second = new_stream();
    Gate gate;
    close_behind(first, gate);
    Event event(0, false);
    event.record(first);
    event.block(second);
    const auto mark = second.mark();
    if (broken) mark->wait();
    EQUAL(mark->done(), broken);
  }
  EQUAL(times_struck(Fault::wait_ignored), 1u);
}

TEST(fault_event_early) {
  for (const bool broken : {false, true}) {
    inject(parse_injections(broken ? "event_early" : ""));
    Stream& stream = new_stream();
    Gate gate;
    close_behind(stream, gate);
    Event event(0, true);
    event.record(stream);
    EQUAL(event.query(), broken);
    EQUAL(stream.query(), false);
  }
  EQUAL(times_struck(Fault::event_early), 1u);
}

TEST(fault_record_stream_ignored) {
  for (const bool broken : {false, true}) {
    inject(parse_injections(broken ? "record_stream_ignored" : ""));
    Stream &owner = new_stream(), &user = new_stream();
    Allocator& allocator = device(0).allocator();
    Block* const block = allocator.allocate(1000, owner);
    void* const address = Allocator::data(block);
    Gate gate;
    close_behind(user, gate);
    allocator.record(block, user);
    allocator.free(block);
    EQUAL(Allocator::data(allocator.allocate(1000, owner)) == address, broken);
  }
}

TEST(fault_wrong_stream_order) {
  const auto order = [](const char* injections) {
    inject(parse_injections(injections));
    Stream& stream = new_stream();
    std::string order;
    for (const char* name : {"a", "b", "c", "d", "e"}) {
      stream.launch(name, [&order, name] { order += name; });
    }
    stream.synchronize();
    EQUAL(stream.query(), true);
    return order;
  };
  EQUAL(order(""), "abcde");
  EQUAL(order("wrong_stream_order:0"), "abcde");
  EQUAL(times_struck(Fault::wrong_stream_order), 0u);
  EQUAL(order("wrong_stream_order"), "badce");
  EQUAL(times_struck(Fault::wrong_stream_order), 2u);
}

TEST(fault_wrong_stream_order_keeps_order_around_marks) {
  inject(parse_injections("wrong_stream_order"));
  Stream& stream = new_stream();
  std::string order;
  stream.launch("a", [&order] { order += "a"; });
  stream.mark()->wait();
  EQUAL(order, "a");
  stream.launch("b", [&order] { order += "b"; });
  CHECK(!stream.query() || order == "ab");
  stream.synchronize();
  EQUAL(order, "ab");
}

TEST(fault_block_given_twice) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  Block* const first = allocator.allocate(1000, stream);
  inject(parse_injections("block_given_twice"));
  Block* const large = allocator.allocate(std::size_t{2} << 20, stream);
  EQUAL(times_struck(Fault::block_given_twice), 0u);  // no memory of that size is in use
  Block* const second = allocator.allocate(800, stream);
  CHECK(Allocator::data(first) == Allocator::data(second));
  EQUAL(times_struck(Fault::block_given_twice), 1u);
  allocator.free(first);
  EQUAL(allocator.statistics().active[all].current, 2);
  allocator.free(second);
  allocator.free(large);
  EQUAL(allocator.statistics().active[all].current, 0);
  EQUAL(allocator.statistics().allocated_bytes[all].current, 0);
}

TEST(fault_statistics_drift) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  inject(parse_injections("statistics_drift"));
  allocator.free(allocator.allocate(1000, stream));
  EQUAL(allocator.statistics().allocated_bytes[all].current, 1024);
  EQUAL(allocator.statistics().active_bytes[all].current, 0);
}

TEST(fault_memory_not_returned) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  allocator.free(allocator.allocate(1000, stream));
  inject(parse_injections("memory_not_returned"));
  allocator.empty();
  EQUAL(allocator.statistics().segment[all].current, 1);
  inject({});
  allocator.empty();
  EQUAL(allocator.statistics().segment[all].current, 0);
}

TEST(fault_peak_not_reset) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  allocator.free(allocator.allocate(1000, stream));
  inject(parse_injections("peak_not_reset"));
  allocator.reset_peak();
  EQUAL(allocator.statistics().allocated_bytes[all].peak, 1024);
  inject({});
  allocator.reset_peak();
  EQUAL(allocator.statistics().allocated_bytes[all].peak, 0);
}

TEST(fault_generator_not_advanced) {
  Counter counter;
  EQUAL(counter.take(5), 0u);
  inject(parse_injections("generator_not_advanced"));
  EQUAL(counter.take(5), 5u);
  EQUAL(counter.take(5), 5u);
}

TEST(fault_replay_skips_node) {
  Stream& stream = new_stream();
  std::string order;
  Graph graph(false);
  graph.begin(stream, {0, 0}, CaptureMode::global);
  for (const char* name : {"a", "b", "c"}) stream.launch(name, [&order, name] { order += name; });
  graph.end();
  inject(parse_injections("replay_skips_node"));
  for (int i = 0; i < 4; ++i) graph.replay(stream);
  stream.synchronize();
  EQUAL(order,
        "bc"
        "ac"
        "ab"
        "bc");
}

TEST(fault_synchronize_early) {
  Stream& stream = new_stream();
  Gate gate;
  close_behind(stream, gate);
  inject(parse_injections("synchronize_early"));
  stream.synchronize();
  device(0).synchronize();
  EQUAL(times_struck(Fault::synchronize_early), 2u);
  EQUAL(stream.query(), false);
}

TEST(fault_launch_hangs_until_the_end) {
  Stream& stream = new_stream();
  inject(parse_injections("launch_hangs"));
  stream.launch("work", [] {});
  inject({});
  bool ran = false;
  stream.launch("after", [&ran] { ran = true; });
  EQUAL(stream.query(), false);
  abandon();
  EQUAL(ran, false);
  EQUAL(stream.query(), true);
}

TEST(fault_launch_kills_process) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);
    inject(parse_injections("launch_kills_process"));
    new_stream().launch("work", [] {});
    _exit(0);
  }
  int status = 0;
  EQUAL(waitpid(child, &status, 0), child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(fault_device_lost) {
  Stream& stream = new_stream();
  inject(parse_injections("device_lost"));
  THROWS(Failure, "device 0: the device was lost at the launch of work", stream.launch("work", [] {}));
  inject({});
  THROWS(Failure, "lost", stream.launch("work", [] {}));
  THROWS(Failure, "lost", stream.synchronize());
  THROWS(Failure, "lost", device(0).synchronize());
  CHECK(device(0).failure()->code == Code::lost);
  new_stream(1).launch("work", [] {});
  device(1).synchronize();
}

TEST(fault_slow) {
  Stream& stream = new_stream();
  Event begin(0, true), end(0, true);
  inject(parse_injections("slow"));
  Gate gate;
  close_behind(stream, gate);
  begin.record(stream);
  stream.launch("work", [] { sleep_in_stream(std::chrono::milliseconds(2)); });
  end.record(stream);
  gate.open();
  stream.synchronize();
  CHECK(Event::elapsed(begin, end) >= 21.0);
}

}  // namespace soft::testing
