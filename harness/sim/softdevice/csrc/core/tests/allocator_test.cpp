// Device memory and pinned host memory.

#include "../allocator.h"

#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "../event.h"
#include "../pinned.h"
#include "check.h"

namespace soft::testing {

namespace {

constexpr std::size_t KiB = 1 << 10, MiB = 1 << 20;

// Checks that the allocator's statistics and snapshot are consistent.
void check_consistent(const Allocator& allocator) {
  const Statistics stats = allocator.statistics();
  std::int64_t segments = 0, reserved = 0, allocated = 0, allocated_bytes = 0, active = 0, active_bytes = 0;
  std::int64_t split = 0, split_bytes = 0, requested = 0;
  for (const SegmentView& segment : allocator.snapshot()) {
    ++segments;
    reserved += static_cast<std::int64_t>(segment.size);
    std::size_t place = segment.address;
    bool was_free = false;
    for (const BlockView& block : segment.blocks) {
      const auto size = static_cast<std::int64_t>(block.size);
      EQUAL(block.address, place);
      EQUAL(block.size % Allocator::rounding, 0u);
      place += block.size;
      CHECK(block.active || !block.allocated);
      CHECK(block.active || !was_free);  // free neighbours must be merged
      was_free = !block.active;
      if (block.allocated) ++allocated, allocated_bytes += size;
      if (block.active) ++active, active_bytes += size, requested += static_cast<std::int64_t>(block.requested);
      if (!block.active && segment.blocks.size() > 1) ++split, split_bytes += size;
    }
    EQUAL(place, segment.address + segment.size);
  }
  EQUAL(stats.segment[all].current, segments);
  EQUAL(stats.reserved_bytes[all].current, reserved);
  EQUAL(stats.allocation[all].current, allocated);
  EQUAL(stats.allocated_bytes[all].current, allocated_bytes);
  EQUAL(stats.active[all].current, active);
  EQUAL(stats.active_bytes[all].current, active_bytes);
  EQUAL(stats.requested_bytes[all].current, requested);
  EQUAL(stats.inactive_split[all].current, split);
  EQUAL(stats.inactive_split_bytes[all].current, split_bytes);
  EQUAL(allocator.memory().first, allocator.memory().second - static_cast<std::size_t>(reserved));
  for (const Stats3* each :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    EQUAL((*each)[all].current, (*each)[small_pool].current + (*each)[large_pool].current);
    for (const Stat& stat : *each) {
      EQUAL(stat.current, stat.allocated - stat.freed);
      CHECK(stat.peak >= stat.current);
    }
  }
}

std::size_t address(const Block* block) { return reinterpret_cast<std::size_t>(Allocator::data(block)); }

}  // namespace

TEST(sizes_are_rounded_and_segments_have_torchs_sizes) {
  struct Row {
    std::size_t bytes, block, segment;
  };
  // A block keeps the rest of its segment if splitting is not worth it: for large blocks, up to 1 MiB.
  for (const Row& row : {Row{1, 512, 2 * MiB}, Row{512, 512, 2 * MiB}, Row{513, 1024, 2 * MiB}, Row{MiB, MiB, 2 * MiB},
                         Row{MiB + 1, MiB + 512, 20 * MiB}, Row{10 * MiB - 512, 10 * MiB - 512, 20 * MiB},
                         Row{10 * MiB, 10 * MiB, 10 * MiB}, Row{10 * MiB + 1, 10 * MiB + 512, 12 * MiB},
                         Row{11 * MiB, 12 * MiB, 12 * MiB}, Row{11 * MiB + 1, 12 * MiB, 12 * MiB}}) {
    Allocator& allocator = device(0).allocator();
    Block* const block = allocator.allocate(row.bytes, new_stream());
    EQUAL(Allocator::size(block), row.block);
    EQUAL(address(block) % Allocator::rounding, 0u);
    const auto segments = allocator.snapshot();
    EQUAL(segments.size(), 1u);
    EQUAL(segments[0].size, row.segment);
    EQUAL(segments[0].large, row.bytes > MiB);
    CHECK(allocator.owns(Allocator::data(block)) && !allocator.owns(&row));
    CHECK(allocator.owns(static_cast<char*>(Allocator::data(block)) + Allocator::size(block) - 1));
    check_consistent(allocator);
    std::memset(Allocator::data(block), 1, Allocator::size(block));
    allocator.free(block);
    allocator.empty();
    check_consistent(allocator);
    EQUAL(allocator.snapshot().size(), 0u);
  }
}

TEST(blocks_are_split_reused_and_merged) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  Block* const first = allocator.allocate(100 * KiB, stream);
  Block* const second = allocator.allocate(200 * KiB, stream);
  Block* const third = allocator.allocate(50 * KiB, stream);
  const std::size_t begin = address(first);
  EQUAL(address(second), begin + 100 * KiB);
  EQUAL(address(third), begin + 300 * KiB);
  allocator.free(first);
  allocator.free(third);  // merges with the rest of the segment
  EQUAL(allocator.snapshot()[0].blocks.size(), 3u);
  check_consistent(allocator);
  Block* const best = allocator.allocate(60 * KiB, stream);  // the smaller of two blocks that fit
  EQUAL(address(best), begin);
  Block* const exact = allocator.allocate(40 * KiB, stream);
  EQUAL(address(exact), begin + 60 * KiB);
  allocator.free(second);
  allocator.free(best);
  allocator.free(exact);
  EQUAL(allocator.snapshot()[0].blocks.size(), 1u);
  EQUAL(allocator.statistics().num_device_alloc, 1);
  check_consistent(allocator);
}

TEST(blocks_are_reused_by_their_own_stream_only) {
  Stream &stream = new_stream(), &other = new_stream();
  Allocator& allocator = device(0).allocator();
  Block* const block = allocator.allocate(1000, stream);
  const std::size_t place = address(block);
  Gate gate;
  close_behind(stream, gate);
  allocator.free(block);
  CHECK(address(allocator.allocate(1000, other)) != place);
  EQUAL(address(allocator.allocate(1000, stream)), place);  // immediately, regardless of pending work on the stream
  THROWS(Failure, "memory of device 0 for a stream of device 1", allocator.allocate(1, new_stream(1)));
}

TEST(blocks_that_other_streams_use_wait_for_them) {
  Stream &stream = new_stream(), &user = new_stream(), &far = new_stream(1);
  Allocator& allocator = device(0).allocator();
  Block* const block = allocator.allocate(1000, stream);
  const std::size_t place = address(block);
  Gate near_gate, far_gate;
  close_behind(user, near_gate);
  close_behind(far, far_gate);
  for (Stream* each : {&stream, &user, &far, &user}) allocator.record(block, *each);
  allocator.free(block);
  Statistics stats = allocator.statistics();
  EQUAL(stats.allocation[all].current, 0);
  EQUAL(stats.active[all].current, 1);
  check_consistent(allocator);
  CHECK(address(allocator.allocate(1000, stream)) != place);
  near_gate.open();
  user.synchronize();
  CHECK(address(allocator.allocate(1000, stream)) != place);
  far_gate.open();
  far.synchronize();
  EQUAL(address(allocator.allocate(1000, stream)), place);
  check_consistent(allocator);
}

TEST(a_block_given_back_twice_is_refused) {
  Allocator& allocator = device(0).allocator();
  Stream &stream = new_stream(), &user = new_stream();
  Block* const block = allocator.allocate(1000, stream);
  Block* const neighbour = allocator.allocate(1000, stream);
  Gate gate;
  close_behind(user, gate);
  allocator.record(block, user);
  allocator.free(block);
  THROWS(Failure, "given back twice", allocator.free(block));
  allocator.free(neighbour);
}

TEST(out_of_memory_comes_after_cached_memory_is_released) {
  Stream &stream = new_stream(), &other = new_stream();
  Allocator& allocator = device(0).allocator();
  Block* const kept = allocator.allocate(3 * MiB, stream);  // a segment of 20 MiB
  allocator.free(allocator.allocate(30 * MiB, stream));
  EQUAL(allocator.memory().first, 14 * MiB);
  Block* const more = allocator.allocate(40 * MiB, stream);  // requires the cached memory
  Statistics stats = allocator.statistics();
  EQUAL(stats.num_alloc_retries, 1);
  EQUAL(stats.num_device_free, 1);
  EQUAL(stats.num_ooms, 0);
  THROWS(OutOfMemory,
         "soft out of memory: tried to allocate 5.00 GiB; device 0 has 64.00 MiB total, 4.00 MiB free, 43.00 MiB "
         "allocated, 17.00 MiB reserved but unallocated",
         allocator.allocate(std::size_t{5} << 30, stream));
  THROWS(OutOfMemory, "tried to allocate", allocator.allocate(static_cast<std::size_t>(-1), stream));
  EQUAL(allocator.statistics().num_ooms, 2);
  allocator.free(kept);
  check_consistent(allocator);
  // The allocator waits for another stream that still uses the memory.
  Gate gate;
  close_behind(other, gate);
  allocator.record(more, other);
  allocator.free(more);
  std::thread opener([&gate] { gate.open(); });
  allocator.free(allocator.allocate(60 * MiB, stream));
  opener.join();
  check_consistent(allocator);
}

TEST(a_failed_device_gives_no_new_segments) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  allocator.free(allocator.allocate(1000, stream));
  device(0).fail(Code::assertion, "bad index");
  Block* const cached = allocator.allocate(1000, stream);
  THROWS(Failure, "bad index", allocator.allocate(2 * MiB, stream));
  allocator.free(cached);
  allocator.empty();
  EQUAL(allocator.snapshot().size(), 0u);
}

TEST(emptying_gives_back_free_segments_after_waiting) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  Block* const kept = allocator.allocate(1000, stream);
  Block* const large = allocator.allocate(12 * MiB, stream);
  auto* const bytes = static_cast<unsigned char*>(Allocator::data(large));
  Gate gate;
  close_behind(stream, gate);
  stream.launch("fill", [bytes] { std::memset(bytes, 1, 12 * MiB); });
  allocator.free(large);
  std::thread opener([&gate] { gate.open(); });
  allocator.empty();  // without the wait, the fill would write to unmapped memory
  opener.join();
  device(0).synchronize();
  EQUAL(allocator.snapshot().size(), 1u);
  EQUAL(allocator.statistics().reserved_bytes[all].current, static_cast<std::int64_t>(2 * MiB));
  allocator.free(kept);
}

TEST(statistics_have_peaks_and_sums_that_can_be_reset) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  Block* const first = allocator.allocate(1000, stream);
  allocator.free(allocator.allocate(2 * MiB, stream));
  Statistics stats = allocator.statistics();
  EQUAL(stats.allocated_bytes[all].peak, static_cast<std::int64_t>(2 * MiB + 1024));
  EQUAL(stats.allocated_bytes[large_pool].current, 0);
  EQUAL(stats.requested_bytes[small_pool].current, 1000);
  EQUAL(stats.allocation[all].allocated, 2);
  EQUAL(stats.allocation[all].freed, 1);
  allocator.reset_peak();
  allocator.reset_accumulated();
  stats = allocator.statistics();
  EQUAL(stats.allocated_bytes[all].peak, 1024);
  EQUAL(stats.allocation[all].allocated, 0);
  EQUAL(stats.num_device_alloc, 0);
  EQUAL(stats.allocation[all].current, 1);
  allocator.free(first);
}

TEST(pools_keep_their_memory_to_themselves) {
  Stream &stream = new_stream(), &other = new_stream();
  Allocator& allocator = device(0).allocator();
  const PoolId pool = new_pool_id(), inner = new_pool_id();
  CHECK(pool != inner);
  allocator.free(allocator.allocate(1000, stream));
  const std::size_t own = allocator.snapshot()[0].address;
  allocator.retain(pool);
  allocator.retain(pool);
  allocator.route(stream, pool);
  Block* const block = allocator.allocate(1000, stream);
  CHECK(address(block) != own);
  EQUAL(allocator.snapshot().size(), 2u);
  allocator.route(stream, inner);
  allocator.free(allocator.allocate(1000, stream));
  EQUAL(allocator.snapshot().size(), 3u);
  allocator.unroute(stream);
  const std::size_t place = address(block);
  allocator.free(block);
  EQUAL(address(allocator.allocate(1000, stream)), place);
  allocator.free(allocator.allocate(1000, other));  // another stream is not routed
  allocator.unroute(stream);
  THROWS(Failure, "not sent to any pool", allocator.unroute(stream));
  EQUAL(address(allocator.allocate(1000, stream)), own);

  allocator.empty();
  std::map<PoolId, int> segments;
  for (const SegmentView& segment : allocator.snapshot()) ++segments[segment.pool];
  EQUAL(segments[pool], 1);   // in use
  EQUAL(segments[inner], 0);  // not retained
  check_consistent(allocator);
}

TEST(a_pool_lives_while_it_is_retained) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  const PoolId pool = new_pool_id();
  allocator.retain(pool);
  allocator.retain(pool);
  allocator.route(stream, pool);
  Block* const block = allocator.allocate(12 * MiB, stream);
  allocator.free(allocator.allocate(1000, stream));
  allocator.unroute(stream);
  allocator.empty();
  EQUAL(allocator.snapshot().size(), 2u);
  allocator.release(pool);
  allocator.empty();
  EQUAL(allocator.snapshot().size(), 2u);
  allocator.release(pool);
  THROWS(Failure, "released more often", allocator.release(pool));
  allocator.empty();
  EQUAL(allocator.snapshot().size(), 1u);  // memory in use stays
  allocator.free(block);
  allocator.empty();
  EQUAL(allocator.snapshot().size(), 0u);
  THROWS(Failure, "released more often", allocator.release(pool));  // the pool is forgotten
}

TEST(one_pool_can_be_emptied_by_itself) {
  Stream& stream = new_stream();
  Allocator& allocator = device(0).allocator();
  const PoolId pool = new_pool_id();
  allocator.retain(pool);
  allocator.free(allocator.allocate(1000, stream));
  allocator.route(stream, pool);
  allocator.free(allocator.allocate(1000, stream));
  allocator.unroute(stream);
  allocator.empty(pool);
  EQUAL(allocator.snapshot().size(), 1u);
  CHECK((allocator.snapshot()[0].pool == PoolId{0, 0}));
  allocator.empty(new_pool_id());  // an unknown pool is empty
  allocator.release(pool);
}

TEST(any_sequence_of_calls_leaves_it_consistent) {
  Stream* const streams[] = {&new_stream(), &new_stream(), &new_stream(1)};
  Allocator& allocator = device(0).allocator();
  std::mt19937_64 random(7);
  struct Held {
    Block* block;
    std::size_t bytes;
    unsigned char mark;
  };
  std::vector<Held> held;
  for (int step = 0; step < 6000; ++step) {
    const auto choice = random() % 100;
    if (choice < 50) {
      const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? 3 * MiB : 64 * KiB);
      try {
        Block* const block = allocator.allocate(bytes, *streams[random() % 2]);
        const auto mark = static_cast<unsigned char>(step);
        auto* const data = static_cast<unsigned char*>(Allocator::data(block));
        data[0] = data[bytes - 1] = mark;
        held.push_back({block, bytes, mark});
      } catch (const OutOfMemory&) {
        CHECK(!held.empty());
      }
    } else if (!held.empty() && choice < 97) {
      std::swap(held[random() % held.size()], held.back());
      const Held last = held.back();
      held.pop_back();
      // Memory in use was not allocated again.
      const auto* const data = static_cast<const unsigned char*>(Allocator::data(last.block));
      CHECK(data[0] == last.mark && data[last.bytes - 1] == last.mark);
      if (choice < 60) {
        Stream& user = *streams[random() % 3];
        user.launch("use", [] {});
        allocator.record(last.block, user);
      }
      allocator.free(last.block);
    } else if (choice == 99 && step % 3 == 0) {
      allocator.empty();
    }
    if (step % 50 == 0) check_consistent(allocator);
  }
  for (const Held& each : held) allocator.free(each.block);
  device(0).synchronize();
  device(1).synchronize();
  allocator.empty();
  EQUAL(allocator.snapshot().size(), 0u);
  check_consistent(allocator);
}

TEST(many_threads_allocate_record_and_free) {
  Stream *const own = &new_stream(), *const shared = &new_stream();
  Allocator& allocator = device(0).allocator();
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      Stream& stream = number % 2 == 0 ? *own : new_stream();
      for (int i = 0; i < 400; ++i) {
        Block* const block = allocator.allocate(512u << (i % 10), stream);
        auto* const data = static_cast<int*>(Allocator::data(block));
        Event ready(0, false);
        stream.launch("write", [data, i] { *data = i; });
        ready.record(stream);
        ready.block(*shared);
        shared->launch("add", [data] { *data += 1; });
        allocator.record(block, *shared);
        allocator.free(block);
        void* const pinned = PinnedAllocator::get().allocate(512u << (i % 5));
        auto* const number_there = static_cast<int*>(pinned);
        shared->launch("write", [number_there, i] { *number_there = i; });
        CHECK(PinnedAllocator::get().record(pinned, *shared));
        PinnedAllocator::get().free(pinned);
        if (i % 100 == 0) allocator.empty();
        if (i % 100 == 50) static_cast<void>(allocator.snapshot());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  device(0).synchronize();
  allocator.empty();
  check_consistent(allocator);
  EQUAL(allocator.snapshot().size(), 0u);
}

TEST(memory_is_flat_over_many_launches_and_allocations) {
  Stream &stream = new_stream(), &user = new_stream();
  Allocator& allocator = device(0).allocator();
  PinnedAllocator& pinned = PinnedAllocator::get();
  const auto churn = [&](int times) {
    for (int i = 0; i < times; ++i) {
      Block* const block = allocator.allocate(std::size_t{512} << (i % 12), stream);
      void* const host = pinned.allocate(600);
      stream.launch("use", [] {});
      if (i % 4 == 0) {
        user.launch("use", [] {});
        allocator.record(block, user);
        pinned.record(host, user);
      }
      allocator.free(block);
      pinned.free(host);
      if (i % 256 == 0) device(0).synchronize();  // limits the length of the queues
    }
    device(0).synchronize();
  };
  churn(20000);
  const std::size_t before = resident();
  churn(200000);
  const std::size_t after = resident();
  if (!sanitized) CHECK(after < before + 4 * MiB);
  EQUAL(allocator.statistics().allocation[all].allocated, 220000);
}

TEST(pinned_blocks_have_powers_of_two_and_are_reused) {
  PinnedAllocator& pinned = PinnedAllocator::get();
  CHECK(pinned.allocate(0) == nullptr);
  void* const first = pinned.allocate(1000);
  EQUAL(pinned.statistics().allocated_bytes.current, 1024);
  void* const other = pinned.allocate(1025);
  EQUAL(pinned.statistics().allocated_bytes.current, 1024 + 2048);
  EQUAL(reinterpret_cast<std::size_t>(first) % 64, 0u);
  std::memset(first, 1, 1024);
  std::memset(other, 2, 2048);
  auto* const inside = static_cast<char*>(first) + 1023;
  CHECK(pinned.owns(first) && pinned.owns(inside) && !pinned.owns(&pinned));
  pinned.free(first);
  CHECK(!pinned.owns(inside));
  CHECK(pinned.allocate(513) == first);
  pinned.free(first);
  THROWS(Failure, "given back twice", pinned.free(first));
  THROWS(Failure, "or is none", pinned.free(static_cast<char*>(other) + 8));
  pinned.free(nullptr);
  EQUAL(pinned.statistics().num_host_alloc, 2);
  pinned.empty();
  PinnedStatistics stats = pinned.statistics();
  EQUAL(stats.num_host_free, 1);
  EQUAL(stats.segment.current, 1);
  EQUAL(stats.reserved_bytes.current, 2048);
  EQUAL(stats.reserved_bytes.peak, 1024 + 2048);
  pinned.free(other);
  pinned.empty();
  pinned.reset_peak();
  pinned.reset_accumulated();
  stats = pinned.statistics();
  EQUAL(stats.reserved_bytes.peak, 0);
  EQUAL(stats.allocation.allocated, 0);
  EQUAL(stats.num_host_alloc, 0);
  THROWS(OutOfMemory, "pinned memory", pinned.allocate(static_cast<std::size_t>(-1)));
  THROWS(OutOfMemory, "pinned memory", pinned.allocate((std::size_t{1} << 47) + 1));
}

TEST(pinned_blocks_wait_for_the_streams_that_used_them) {
  PinnedAllocator& pinned = PinnedAllocator::get();
  Stream &first = new_stream(0), &second = new_stream(1);
  Gate first_gate, second_gate;
  void* const block = pinned.allocate(1000);
  close_behind(first, first_gate);
  close_behind(second, second_gate);
  CHECK(pinned.record(static_cast<char*>(block) + 100, first));
  CHECK(pinned.record(block, second));
  CHECK(pinned.record(block, second));
  CHECK(!pinned.record(&pinned, second));
  pinned.free(block);
  EQUAL(pinned.statistics().allocation.current, 0);
  EQUAL(pinned.statistics().active_requests.current, 1);
  void* const other = pinned.allocate(1000);
  CHECK(other != block);
  first_gate.open();
  first.synchronize();
  pinned.empty();
  CHECK(pinned.allocate(1000) != block);
  second_gate.open();
  second.synchronize();
  CHECK(pinned.allocate(1000) == block);
  EQUAL(pinned.statistics().active_bytes.current, 3 * 1024);
}

}  // namespace soft::testing
