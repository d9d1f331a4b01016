#include "races.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>

#include "history.h"
#include "host_pages.h"

namespace simcuda::races {

namespace {

struct Wanted {
  bool order = false, memory = false;
};

// The checks of SIMCUDA_CHECK, separated by commas.
const Wanted wanted = [] {
  Wanted result;
  const char* const value = std::getenv("SIMCUDA_CHECK");
  if (value == nullptr) return result;
  std::istringstream words(value);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "races") {
      result.order = true;
    } else if (word == "memory") {
      result.memory = true;
    } else {
      std::fprintf(stderr, "simulated CUDA: SIMCUDA_CHECK=%s: expected races, memory, or both; nothing is checked\n",
                   value);
      return Wanted{};
    }
  }
  return result;
}();

// Never destroyed: work may be launched until the very end of the process.
struct State {
  std::mutex mutex;
  std::vector<Timeline*> timelines;
  std::map<int, Clock> ended;  // by device: the blocking streams that are destroyed
  Clock host;
  std::uint32_t lanes = 0;
  History history;
  HostPages pages;
  Conflicts by_host;                  // not reported yet
  std::atomic<bool> unplaced{false};  // whether some of them have no place in the program to wait for

  std::uint32_t next_lane() { return ++lanes; }

  // Joins what CUDA's order of the legacy default stream says, and what the host knows.
  void order(Timeline& timeline) {
    join(timeline.clock, host);
    if (timeline.role == Role::other) return;
    for (const Timeline* const other : timelines) {
      const bool before = timeline.role == Role::legacy ? other->role == Role::blocking : other->role == Role::legacy;
      if (before && other->device == timeline.device) join(timeline.clock, other->clock);
    }
    if (timeline.role == Role::legacy) join(timeline.clock, ended[timeline.device]);
  }

  void learn(int device) {
    for (const Timeline* const timeline : timelines) {
      if (timeline->device == device) join(host, timeline->clock);
    }
    host_learns(ended[device]);
  }

  void host_learns(const Clock& clock) {
    join(host, clock);
    pages.release(host);
  }

  void touch(const Access& access, const Clock& clock, std::uint32_t lane, const Accessor& accessor,
             Conflicts& conflicts) {
    const auto begin = reinterpret_cast<std::uintptr_t>(access.address);
    Accessor known = accessor;
    known.writes = access.write;
    if (access.address == nullptr && access.write) history.assume_all_written();
    if (wanted.memory) history.find_unwritten(access, known, conflicts);
    if (wanted.order) pages.hold({begin, begin + access.bytes, lane, clock[lane], known});
    Conflicts unordered;
    history.touch(access, clock, lane, std::move(known), wanted.order ? conflicts : unordered);
  }
};

State& state() {
  static auto* const made = new State;
  return *made;
}

// Counts one more piece of work of the lane.
void advance(Clock& clock, std::uint32_t lane) {
  if (clock.size() <= lane) clock.resize(lane + 1);
  ++clock[lane];
}

const Clock* clock_of(const work::Mark& mark) { return static_cast<const Clock*>(mark.attached.get()); }

}  // namespace

bool enabled() { return wanted.order || wanted.memory; }
bool checks_order() { return wanted.order; }
bool checks_memory() { return wanted.memory; }

namespace {

// Reports the accesses of the host. `placed`: the call comes from a place of the program that has just made them.
void report_host(bool placed) {
  const auto site = placed && sites().gather != nullptr ? sites().gather() : nullptr;
  Conflicts conflicts;
  {
    const std::lock_guard lock(state().mutex);
    conflicts = std::exchange(state().by_host, {});
    state().unplaced = false;
  }
  for (Conflict& conflict : conflicts) conflict.later.origin = std::make_shared<const Origin>(Origin{"the host", site});
  report(conflicts);
}

void report_placed() { report_host(true); }

// Reports accesses of the host that no place in the program is about to report.
void report_unplaced() {
  if (state().unplaced) report_host(false);
}

}  // namespace

Timeline::Timeline(int device, unsigned long long stream, Role role) : device(device), stream(stream), role(role) {
  if (!enabled()) return;
  const std::lock_guard lock(state().mutex);
  state().timelines.push_back(this);
}

Timeline::~Timeline() {
  if (!enabled()) return;
  const std::lock_guard lock(state().mutex);
  std::erase(state().timelines, this);
  join(state().ended[device], clock);
}

void record(Timeline& timeline, work::Mark& mark) {
  if (!enabled()) return;
  const std::lock_guard lock(state().mutex);
  state().order(timeline);
  mark.attached = std::make_shared<const Clock>(timeline.clock);
}

void wait(Timeline& timeline, const work::Mark& mark) {
  if (!enabled() || clock_of(mark) == nullptr) return;
  const std::lock_guard lock(state().mutex);
  join(timeline.clock, *clock_of(mark));
}

void learn(const work::Mark& mark) {
  if (!enabled() || clock_of(mark) == nullptr) return;
  {
    const std::lock_guard lock(state().mutex);
    state().host_learns(*clock_of(mark));
  }
  report_unplaced();
}

void learn(Timeline& timeline) {
  if (!enabled()) return;
  {
    const std::lock_guard lock(state().mutex);
    state().order(timeline);
    state().host_learns(timeline.clock);
  }
  report_unplaced();
}

void learn(int device) {
  if (!enabled()) return;
  {
    const std::lock_guard lock(state().mutex);
    state().learn(device);
  }
  report_unplaced();
}

void forget(const void* address, std::size_t bytes) {
  if (!enabled() || bytes == 0) return;
  const std::lock_guard lock(state().mutex);
  state().history.forget(address, bytes);
}

void assume_all_written() {
  if (!enabled()) return;
  const std::lock_guard lock(state().mutex);
  state().history.assume_all_written();
}

bool in_block(const void* address) {
  const std::lock_guard lock(state().mutex);
  const Block* const block = state().history.block_of(address);
  return block != nullptr && !block->freed;
}

void remember_blocks(std::vector<Access>& accesses) {
  if (!enabled()) return;
  const std::lock_guard lock(state().mutex);
  for (Access& each : accesses) {
    const Block* const block = state().history.block_of(each.address);
    if (block != nullptr && !block->of_graphs) each.generation = block->generation;
  }
}

void add_pinned(const char* base, std::size_t bytes, std::ptrdiff_t to_second) {
  const std::lock_guard lock(state().mutex);
  state().pages.add(base, bytes, to_second);
}

void remove_pinned(const void* base) {
  if (!enabled()) return;
  const std::lock_guard lock(state().mutex);
  state().pages.remove(base);
}

char* for_work(char* address) {
  if (!checks_order()) return address;
  const std::lock_guard lock(state().mutex);
  return address + state().pages.to_second(address);
}

// The thread that made the access holds none of the locks here, and is outside of the allocator of memory.
bool serve_access(const void* address, bool write, bool of_work) {
  if (!enabled()) return false;
  bool known = false;
  const std::lock_guard lock(state().mutex);
  const auto pending = state().pages.touch(reinterpret_cast<std::uintptr_t>(address), write, known);
  if (!pending || of_work) return known;
  const Accessor host{nullptr, the_host, 0, false, write};
  state().by_host.push_back({pending->accessor, host, Conflict::Kind::unordered, pending->end - pending->begin});
  const bool in_main_thread = syscall(SYS_gettid) == getpid();
  const auto soon = sites().call_soon;
  if (!in_main_thread || soon == nullptr || !soon(&report_placed)) state().unplaced = true;
  return true;
}

void report_host_access(bool write) {
  const auto site = sites().gather != nullptr ? sites().gather() : nullptr;
  const Accessor host{std::make_shared<const Origin>(Origin{"the host", site}), the_host, 0, false, write};
  report({{host, host, Conflict::Kind::refused, 1, "of device memory",
           "the host reaches it by copies alone, such as Tensor.cpu() and cudaMemcpy"}});
}

std::shared_ptr<const Origin> origin(const char* name) {
  if (!enabled()) return nullptr;
  if (const auto before_work = sites().before_work) before_work();
  const auto gather = sites().gather;
  return std::make_shared<const Origin>(Origin{name, gather == nullptr ? nullptr : gather()});
}

Conflicts access(Timeline& timeline, const std::vector<Access>& accesses, std::shared_ptr<const Origin> origin) {
  Conflicts conflicts;
  if (!enabled()) return conflicts;
  const std::lock_guard lock(state().mutex);
  state().order(timeline);
  if (timeline.lane == 0) timeline.lane = state().next_lane();
  advance(timeline.clock, timeline.lane);
  const Accessor accessor{std::move(origin), timeline.device, timeline.stream};
  for (const Access& each : accesses) state().touch(each, timeline.clock, timeline.lane, accessor, conflicts);
  return conflicts;
}

Replay::Replay(Timeline& timeline, std::vector<std::uint32_t>& lanes, std::size_t nodes)
    : timeline_(timeline), lanes_(lanes), clocks_(nodes), branches_(nodes), continued_(nodes) {
  if (!enabled()) return;
  const std::lock_guard lock(state().mutex);
  state().order(timeline_);
  base_ = timeline_.clock;
}

void Replay::node(std::size_t place, const std::vector<std::size_t>& needs, const std::vector<Access>& accesses,
                  const std::shared_ptr<const Origin>& origin) {
  if (!enabled()) return;
  Clock& clock = clocks_[place];
  clock = base_;
  bool follows = false;
  for (const std::size_t need : needs) {
    join(clock, clocks_[need]);
    if (!follows && !continued_[need]) {
      follows = continued_[need] = true;
      branches_[place] = branches_[need];
    }
  }
  if (!follows) branches_[place] = used_++;
  const std::lock_guard lock(state().mutex);
  while (lanes_.size() < used_) lanes_.push_back(state().next_lane());
  const std::uint32_t lane = lanes_[branches_[place]];
  advance(clock, lane);
  const Accessor accessor{origin, timeline_.device, timeline_.stream, true};
  for (const Access& each : accesses) {
    const Block* const block = each.generation == 0 ? nullptr : state().history.block_of(each.address);
    if (each.generation != 0 && (block == nullptr || block->freed || block->generation != each.generation)) {
      Accessor later = accessor;
      later.writes = each.write;
      conflicts_.push_back({later, later, Conflict::Kind::outlived, each.bytes});
      continue;
    }
    state().touch(each, clock, lane, accessor, conflicts_);
  }
}

void Replay::record(std::size_t place, work::Mark& mark) {
  if (enabled()) mark.attached = std::make_shared<const Clock>(clocks_[place]);
}

void Replay::wait(std::size_t place, const work::Mark& mark) {
  if (enabled() && clock_of(mark) != nullptr) join(clocks_[place], *clock_of(mark));
}

Conflicts Replay::finish() {
  if (!enabled()) return {};
  const std::lock_guard lock(state().mutex);
  for (const Clock& clock : clocks_) join(timeline_.clock, clock);
  return std::move(conflicts_);
}

}  // namespace simcuda::races

extern "C" {

__attribute__((visibility("default"))) int simcudaChecksWork() { return simcuda::races::enabled() ? 1 : 0; }

__attribute__((visibility("default"))) void simcudaNoteBlock(const void* address, std::size_t bytes, bool of_graphs,
                                                             bool earlier) {
  if (!simcuda::races::enabled() || bytes == 0) return;
  const std::lock_guard lock(simcuda::races::state().mutex);
  simcuda::races::state().history.note_block(address, bytes, of_graphs, earlier);
}

__attribute__((visibility("default"))) void simcudaNoteFreed(const void* address) {
  if (!simcuda::races::enabled()) return;
  const std::lock_guard lock(simcuda::races::state().mutex);
  simcuda::races::state().history.note_freed(address);
}
}
