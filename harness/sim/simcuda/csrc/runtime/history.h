// What work has done to memory: the last write and the reads since then of each byte, and the blocks of torch's
// allocator. Without locks: the check for races has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "conflict.h"

namespace simcuda::races {

// Where an access stands in the order. `generation` is that of the allocator's block.
struct Stamp {
  std::uint32_t lane = 0;
  std::uint64_t tick = 0;
  std::uint64_t generation = 0;
  Accessor accessor;
};

bool knows(const Clock& clock, const Stamp& stamp);
void join(Clock& clock, const Clock& other);

// A block that torch's allocator has given to a tensor. `of_graphs`: it is in a pool of graphs.
struct Block {
  std::uintptr_t end;
  std::uint64_t generation;
  bool of_graphs;
  bool freed = false;
};

class History {
 public:
  // Adds an access, and the conflicts with earlier ones that the clock does not know.
  void touch(const Access& access, const Clock& clock, std::uint32_t lane, Accessor accessor, Conflicts& conflicts);
  void forget(const void* address, std::size_t bytes);

  // Adds a conflict if the access reads bytes that were not written since the allocator gave them to a tensor.
  void find_unwritten(const Access& access, const Accessor& accessor, Conflicts& conflicts) const;
  void assume_all_written() { assumed_ = generations_; }

  // `earlier`: what is known about the memory is about the tensor that has the block.
  void note_block(const void* address, std::size_t bytes, bool of_graphs, bool earlier);
  void note_freed(const void* address);
  const Block* block_of(const void* address) const;  // null outside of the allocator's blocks

 private:
  // Bytes with the same history: the last write, and the reads since then that are not ordered among themselves.
  struct Cell {
    std::uintptr_t end = 0;
    Stamp write;  // lane 0: none
    std::vector<Stamp> reads;
  };

  void split(std::uintptr_t address);  // makes a boundary of cells

  std::map<std::uintptr_t, Cell> memory_;
  std::map<std::uintptr_t, Block> blocks_;
  std::uint64_t generations_ = 0, assumed_ = 0;
};

}  // namespace simcuda::races
