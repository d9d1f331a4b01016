// Pinned host memory: blocks of powers of two, reused once the streams that used them have come past that use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "allocator.h"

namespace soft {

class Stream;

struct PinnedStatistics {
  Stat allocation, active_requests, segment;           // counts
  Stat allocated_bytes, active_bytes, reserved_bytes;  // in use by the user; in use at all; held
  std::int64_t num_host_alloc = 0, num_host_free = 0;
};

// One for the process. All methods are thread-safe.
class PinnedAllocator {
 public:
  static PinnedAllocator& get();

  void* allocate(std::size_t bytes);  // never null but for 0 bytes
  void free(void* address);           // the address that `allocate` gave
  // Any address within a block; false when it is in none. The block is not reused until the stream has come here;
  // if it is of a capture and the stream is captured, never.
  bool record(const void* address, Stream& stream);
  bool owns(const void* address) const;
  void empty();
  PinnedStatistics statistics() const;
  void reset_peak();
  void reset_accumulated();

 private:
  PinnedAllocator();
  struct State;
  State* state_;
};

}  // namespace soft
