#include "history.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace simcuda::races {

bool knows(const Clock& clock, const Stamp& stamp) {
  return stamp.lane < clock.size() && clock[stamp.lane] >= stamp.tick;
}

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t lane = 0; lane < other.size(); ++lane) clock[lane] = std::max(clock[lane], other[lane]);
}

void History::split(std::uintptr_t address) {
  const auto next = memory_.upper_bound(address);
  if (next == memory_.begin()) return;
  const auto cell = std::prev(next);
  if (cell->first == address || cell->second.end <= address) return;
  memory_.emplace_hint(next, address, cell->second);
  cell->second.end = address;
}

void History::touch(const Access& access, const Clock& clock, std::uint32_t lane, Accessor accessor,
                    Conflicts& conflicts) {
  if (access.bytes == 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(access.address), end = begin + access.bytes;
  accessor.writes = access.write;
  const Block* const block = block_of(access.address);
  const Stamp stamp{lane, clock[lane], block == nullptr ? 0 : block->generation, std::move(accessor)};
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
  auto cell = memory_.lower_bound(begin);
  std::uintptr_t covered = begin;
  for (; cell != memory_.end() && cell->first < end; ++cell) {
    Cell& known = cell->second;
    if (known.write.lane != 0 && !knows(clock, known.write)) conflict(known.write, cell->first, known.end);
    if (access.write) {
      for (const Stamp& read : known.reads) {
        if (!knows(clock, read)) conflict(read, cell->first, known.end);
      }
      continue;
    }
    if (covered < cell->first) memory_.emplace_hint(cell, covered, Cell{cell->first, {}, {stamp}});
    covered = known.end;
    std::erase_if(known.reads, [&](const Stamp& read) { return knows(clock, read); });
    known.reads.push_back(stamp);
  }
  if (access.write) {
    memory_.erase(memory_.lower_bound(begin), cell);
    memory_.emplace_hint(cell, begin, Cell{end, stamp, {}});
  } else if (covered < end) {
    memory_.emplace_hint(cell, covered, Cell{end, {}, {stamp}});
  }
}

void History::find_unwritten(const Access& access, const Accessor& accessor, Conflicts& conflicts) const {
  const Block* const block = block_of(access.address);
  if (access.write || access.bytes == 0 || block == nullptr || block->generation <= assumed_) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(access.address), end = begin + access.bytes;
  std::size_t written = 0;
  auto cell = memory_.upper_bound(begin);
  if (cell != memory_.begin()) --cell;
  for (; cell != memory_.end() && cell->first < end; ++cell) {
    const std::uintptr_t from = std::max(begin, cell->first), to = std::min(end, cell->second.end);
    const Stamp& write = cell->second.write;
    if (from < to && write.lane != 0 && write.generation == block->generation) written += to - from;
  }
  if (written == access.bytes) return;
  if (!conflicts.empty() && conflicts.back().kind == Conflict::Kind::unwritten &&
      conflicts.back().later.origin == accessor.origin) {
    conflicts.back().bytes += access.bytes - written;
    return;
  }
  conflicts.push_back({accessor, accessor, Conflict::Kind::unwritten, access.bytes - written});
}

void History::forget(const void* address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address), end = begin + bytes;
  split(begin);
  split(end);
  memory_.erase(memory_.lower_bound(begin), memory_.lower_bound(end));
  blocks_.erase(blocks_.lower_bound(begin), blocks_.lower_bound(end));
}

void History::note_block(const void* address, std::size_t bytes, bool of_graphs, bool earlier) {
  const auto begin = reinterpret_cast<std::uintptr_t>(address), end = begin + bytes;
  auto first = blocks_.lower_bound(begin);
  if (first != blocks_.begin() && std::prev(first)->second.end > begin) std::prev(first)->second.end = begin;
  first = blocks_.erase(first, blocks_.lower_bound(end));
  blocks_.emplace_hint(first, begin, Block{end, ++generations_, of_graphs});
  if (!earlier) return;
  for (auto cell = memory_.lower_bound(begin); cell != memory_.end() && cell->first < end; ++cell) {
    cell->second.write.generation = generations_;
    for (Stamp& read : cell->second.reads) read.generation = generations_;
  }
}

void History::note_freed(const void* address) {
  const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found != blocks_.end()) found->second.freed = true;
}

const Block* History::block_of(const void* address) const {
  const auto next = blocks_.upper_bound(reinterpret_cast<std::uintptr_t>(address));
  if (next == blocks_.begin()) return nullptr;
  const Block& block = std::prev(next)->second;
  return reinterpret_cast<std::uintptr_t>(address) < block.end ? &block : nullptr;
}

}  // namespace simcuda::races
