// Pinned host memory: blocks of powers of two, which are reused once the streams that used them have passed that use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "allocator.h"

namespace soft {

class Stream;

struct PinnedStatistics {
  Stat allocation, active_requests, segment;           // counts
  Stat allocated_bytes, active_bytes, reserved_bytes;  // used by the program; used by the program or streams; total
  std::int64_t num_host_alloc = 0, num_host_free = 0;
};

// One per process. All methods are thread-safe.
class PinnedAllocator {
 public:
  static PinnedAllocator& get();

  void* allocate(std::size_t bytes);  // null only for 0 bytes
  void free(void* address);           // an address returned by `allocate`
  // Takes any address within a block; returns false for other addresses. The block is not reused until the stream
  // reaches this point. If the block was allocated in a capture and the stream is capturing, it is never reused.
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
