#include "races.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "host_pages.h"

namespace simcuda::races {

namespace {

const bool enabled_ = [] {
  const char* const value = std::getenv("SIMCUDA_CHECK");
  if (value == nullptr || *value == 0) return false;
  if (std::strcmp(value, "races") == 0) return true;
  std::fprintf(stderr, "simulated CUDA: SIMCUDA_CHECK=%s: expected races; nothing is checked\n", value);
  return false;
}();

// Reports of one process. More would hide the first ones.
constexpr std::size_t most_reports = 20;

// Where an access stands in the order. `generation` is that of the allocator's block.
struct Stamp {
  std::uint32_t lane = 0;
  std::uint64_t tick = 0;
  std::uint64_t generation = 0;
  Accessor accessor;
};

// Bytes with the same history: the last write, and the reads since then that are not ordered among themselves.
struct Cell {
  std::uintptr_t end = 0;
  Stamp write;  // lane 0: none
  std::vector<Stamp> reads;
};

struct Block {
  std::uintptr_t end;
  std::uint64_t generation;
  bool of_graphs;
  bool freed = false;
};

bool knows(const Clock& clock, const Stamp& stamp) {
  return stamp.lane < clock.size() && clock[stamp.lane] >= stamp.tick;
}

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t lane = 0; lane < other.size(); ++lane) clock[lane] = std::max(clock[lane], other[lane]);
}

}  // namespace

// Never destroyed: work may be launched until the very end of the process.
struct State {
  std::mutex mutex;
  std::vector<Timeline*> timelines;
  std::map<int, Clock> ended;  // by device: the blocking streams that are destroyed
  Clock host;
  std::uint32_t lanes = 0;
  std::map<std::uintptr_t, Cell> memory;
  std::map<std::uintptr_t, Block> blocks;
  std::uint64_t generations = 0;
  std::mutex reporting;
  std::set<std::string> reported;
  bool kept = false;  // whether some of them are in the file
  SimcudaSites sites{nullptr, nullptr, nullptr};
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

  const Block* block_of(std::uintptr_t address) const {
    const auto next = blocks.upper_bound(address);
    if (next == blocks.begin()) return nullptr;
    const Block& block = std::prev(next)->second;
    return address < block.end ? &block : nullptr;
  }

  std::uint64_t generation_of(std::uintptr_t address) const {
    const Block* const block = block_of(address);
    return block == nullptr ? 0 : block->generation;
  }

  // Makes a boundary of cells at the address.
  void split(std::uintptr_t address) {
    const auto next = memory.upper_bound(address);
    if (next == memory.begin()) return;
    const auto cell = std::prev(next);
    if (cell->first == address || cell->second.end <= address) return;
    memory.emplace_hint(next, address, cell->second);
    cell->second.end = address;
  }

  void touch(const Access& access, const Clock& clock, std::uint32_t lane, Accessor accessor, Conflicts& conflicts) {
    if (access.bytes == 0) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(access.address), end = begin + access.bytes;
    accessor.writes = access.write;
    pages.hold({begin, end, lane, clock[lane], accessor});
    const Stamp stamp{lane, clock[lane], generation_of(begin), std::move(accessor)};
    split(begin);
    split(end);
    const auto conflict = [&](const Stamp& earlier, std::uintptr_t at, std::uintptr_t until) {
      const std::size_t bytes = std::min(until, end) - at;
      if (!conflicts.empty() && conflicts.back().earlier.origin == earlier.accessor.origin &&
          conflicts.back().later.origin == stamp.accessor.origin) {
        conflicts.back().bytes += bytes;
        return;
      }
      const auto kind = earlier.generation != stamp.generation ? Conflict::Kind::reused : Conflict::Kind::unordered;
      conflicts.push_back({earlier.accessor, stamp.accessor, kind, bytes});
    };
    auto cell = memory.lower_bound(begin);
    std::uintptr_t covered = begin;
    for (; cell != memory.end() && cell->first < end; ++cell) {
      Cell& known = cell->second;
      if (known.write.lane != 0 && !knows(clock, known.write)) conflict(known.write, cell->first, known.end);
      if (access.write) {
        for (const Stamp& read : known.reads) {
          if (!knows(clock, read)) conflict(read, cell->first, known.end);
        }
        continue;
      }
      if (covered < cell->first) memory.emplace_hint(cell, covered, Cell{cell->first, {}, {stamp}});
      covered = known.end;
      std::erase_if(known.reads, [&](const Stamp& read) { return knows(clock, read); });
      known.reads.push_back(stamp);
    }
    if (access.write) {
      memory.erase(memory.lower_bound(begin), cell);
      memory.emplace_hint(cell, begin, Cell{end, stamp, {}});
    } else if (covered < end) {
      memory.emplace_hint(cell, covered, Cell{end, {}, {stamp}});
    }
  }
};

namespace {

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

bool enabled() { return enabled_; }

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
  const std::lock_guard lock(state().mutex);
  state().host_learns(*clock_of(mark));
}

void learn(Timeline& timeline) {
  if (!enabled()) return;
  const std::lock_guard lock(state().mutex);
  state().order(timeline);
  state().host_learns(timeline.clock);
}

void learn(int device) {
  if (!enabled()) return;
  const std::lock_guard lock(state().mutex);
  state().learn(device);
}

void forget(const void* address, std::size_t bytes) {
  if (!enabled() || bytes == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(address), end = begin + bytes;
  const std::lock_guard lock(state().mutex);
  state().split(begin);
  state().split(end);
  state().memory.erase(state().memory.lower_bound(begin), state().memory.lower_bound(end));
  state().blocks.erase(state().blocks.lower_bound(begin), state().blocks.lower_bound(end));
}

namespace {

void note_block(const void* address, std::size_t bytes, bool of_graphs) {
  if (!enabled() || bytes == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(address), end = begin + bytes;
  const std::lock_guard lock(state().mutex);
  auto& blocks = state().blocks;
  auto first = blocks.lower_bound(begin);
  if (first != blocks.begin() && std::prev(first)->second.end > begin) std::prev(first)->second.end = begin;
  first = blocks.erase(first, blocks.lower_bound(end));
  blocks.emplace_hint(first, begin, Block{end, ++state().generations, of_graphs});
}

void note_freed(const void* address) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().blocks.find(reinterpret_cast<std::uintptr_t>(address));
  if (found != state().blocks.end()) found->second.freed = true;
}

}  // namespace

void remember_blocks(std::vector<Access>& accesses) {
  if (!enabled()) return;
  const std::lock_guard lock(state().mutex);
  for (Access& each : accesses) {
    const Block* const block = state().block_of(reinterpret_cast<std::uintptr_t>(each.address));
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
  if (!enabled()) return address;
  const std::lock_guard lock(state().mutex);
  return address + state().pages.to_second(address);
}

namespace {

// Reports the accesses of the host. `placed`: the call comes from a place of the program that has just made them.
void report_host(bool placed) {
  const auto site = placed && state().sites.gather != nullptr ? state().sites.gather() : nullptr;
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

}  // namespace

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
  const auto soon = state().sites.call_soon;
  if (!in_main_thread || soon == nullptr || !soon(&report_placed)) state().unplaced = true;
  return true;
}

std::shared_ptr<const Origin> origin(const char* name) {
  if (!enabled()) return nullptr;
  const auto gather = state().sites.gather;
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
    const auto address = reinterpret_cast<std::uintptr_t>(each.address);
    const Block* const block = each.generation == 0 ? nullptr : state().block_of(address);
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

namespace {

// The most findings that one process keeps in its file.
constexpr std::size_t most_kept = 1000;

std::string place_of(const Accessor& accessor) {
  if (accessor.device == the_host) return "the host";
  return std::string(accessor.in_graph ? "a graph launched on " : "") + "stream " + std::to_string(accessor.stream) +
         " of device " + std::to_string(accessor.device);
}

std::string frames_of(const Origin& origin) {
  const auto describe = state().sites.describe;
  return origin.site == nullptr || describe == nullptr ? "" : describe(origin.site.get());
}

std::string described(const Accessor& accessor, const std::string& frames) {
  const std::string where = accessor.device == the_host ? "" : " on " + place_of(accessor);
  std::string text = "  " + std::string(accessor.origin->name) + where + "\n";
  for (std::size_t begin = 0; begin < frames.size();) {
    const std::size_t end = std::min(frames.find('\n', begin), frames.size());
    text += "    " + frames.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return text;
}

std::string advice(const Conflict& conflict) {
  const Accessor &earlier = conflict.earlier, &later = conflict.later;
  const std::string first = place_of(earlier), second = place_of(later);
  if (later.device == the_host) {
    return "the host does not wait for " + first +
           ": a synchronisation with it, or with an event recorded there after " + earlier.origin->name +
           ", is missing";
  }
  if (conflict.kind == Conflict::Kind::outlived) {
    return "the tensor was freed after the capture: keep it as long as the graph, or allocate it during the capture";
  }
  if (conflict.kind == Conflict::Kind::reused) {
    return "the memory was given to another tensor while " + first +
           " could still use it: " + "record_stream, or a wait before the tensor is freed, is missing";
  }
  if (first == second) return "the two nodes are on branches of the graph that do not wait for each other";
  return second + " does not wait for " + first + ": an event recorded there after " + earlier.origin->name +
         ", and a wait for it before " + later.origin->name + ", are missing";
}

// Text for a JSON string.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    if (letter == '\n') {
      result += "\\n";
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(letter));
      result += escaped;
    } else {
      result += letter;
    }
  }
  return result + '"';
}

// The file of this process in the folder SIMCUDA_FINDINGS; empty without the folder.
std::string file_of_findings() {
  const char* const folder = std::getenv("SIMCUDA_FINDINGS");
  return folder == nullptr || *folder == 0 ? "" : std::string(folder) + "/" + std::to_string(getpid()) + ".ndjson";
}

// Who takes the file away wants each finding again, should the program go on to make it: the harness does so between
// two cases that one process runs.
void report_again_without(const std::string& path) {
  if (!state().kept || ::access(path.c_str(), F_OK) == 0) return;
  state().reported.clear();
  state().kept = false;
}

// Appends a line to the file.
void keep(const std::string& path, const Conflict& conflict, const std::string& kind, const std::string& text) {
  if (path.empty()) return;
  std::FILE* const file = std::fopen(path.c_str(), "a");
  if (file == nullptr) return;
  const std::string line = "{\"kind\": " + quoted(kind) + ", \"earlier\": " + quoted(conflict.earlier.origin->name) +
                           ", \"later\": " + quoted(conflict.later.origin->name) +
                           ", \"bytes\": " + std::to_string(conflict.bytes) + ", \"text\": " + quoted(text) + "}\n";
  std::fputs(line.c_str(), file);
  std::fclose(file);
  state().kept = true;
}

}  // namespace

void report(const Conflicts& conflicts) {
  if (enabled() && state().unplaced) report_host(false);
  if (conflicts.empty()) return;
  const std::string path = file_of_findings();
  for (const Conflict& conflict : conflicts) {
    const Accessor &earlier = conflict.earlier, &later = conflict.later;
    const std::string first = frames_of(*earlier.origin), second = frames_of(*later.origin);
    const std::string kind = conflict.kind == Conflict::Kind::unordered ? "race" : "used after it was freed";
    const std::string key = kind + '\n' + earlier.origin->name + '\n' + first + later.origin->name + '\n' + second;
    const std::string use = later.origin->name + std::string(later.writes ? " writes " : " reads ") +
                            std::to_string(conflict.bytes) + " bytes ";
    const std::string text =
        conflict.kind == Conflict::Kind::outlived
            ? use + "of a tensor that was freed\n" + described(later, second) + "  " + advice(conflict) + "\n"
            : use + "that " + earlier.origin->name + (earlier.writes ? " has written" : " has read") +
                  ", in no order\n" + described(earlier, first) + described(later, second) + "  " + advice(conflict) +
                  "\n";
    std::size_t number = 0;
    {
      const std::lock_guard lock(state().reporting);
      report_again_without(path);
      if (state().reported.size() >= most_kept || !state().reported.insert(key).second) continue;
      number = state().reported.size();
      keep(path, conflict, kind, text);
    }
    if (number <= most_reports) std::fprintf(stderr, "simulated CUDA: %s: %s", kind.c_str(), text.c_str());
    if (number == most_reports)
      std::fprintf(stderr, "simulated CUDA: further findings of this process are not shown\n");
  }
}

}  // namespace simcuda::races

extern "C" {

__attribute__((visibility("default"))) int simcudaChecksRaces() { return simcuda::races::enabled() ? 1 : 0; }

__attribute__((visibility("default"))) void simcudaSetSites(const SimcudaSites* sites) {
  simcuda::races::state().sites = *sites;
}

__attribute__((visibility("default"))) void simcudaNoteBlock(const void* address, std::size_t bytes, bool of_graphs) {
  simcuda::races::note_block(address, bytes, of_graphs);
}

__attribute__((visibility("default"))) void simcudaNoteFreed(const void* address) {
  simcuda::races::note_freed(address);
}
}
