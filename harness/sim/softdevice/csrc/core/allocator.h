// A device's caching allocator with the rules of torch's CUDA allocator: it allocates segments from the device and
// splits blocks off them. The stream of a block reuses it in stream order. A block that other streams use is kept until
// they are done.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device_state.h"
#include "pool_id.h"
#include "stream.h"
#include "streams.h"

namespace soft {

struct Stat {
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;

  void change(std::int64_t amount) {
    current += amount;
    peak = std::max(peak, current);
    (amount > 0 ? allocated : freed) += amount > 0 ? amount : -amount;
  }
};
enum StatKind { all = 0, small_pool = 1, large_pool = 2, kinds = 3 };
using Stats3 = std::array<Stat, kinds>;

// Names and meanings are those of c10::CachingDeviceAllocator::DeviceStats.
struct Statistics {
  Stats3 allocation, segment, active, inactive_split;
  Stats3 allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  std::int64_t num_alloc_retries = 0, num_ooms = 0, num_sync_all_streams = 0;
  std::int64_t num_device_alloc = 0, num_device_free = 0;
};

struct BlockView {
  std::size_t address, size, requested;
  bool allocated, active;  // active: allocated, or freed but still used by a stream
};
struct SegmentView {
  std::size_t address, size;
  std::int64_t stream;
  bool large;
  PoolId pool;
  std::vector<BlockView> blocks;  // by address, without gaps
};

struct Block;

// All methods are thread-safe. Sizes are in bytes.
class Allocator {
 public:
  static constexpr std::size_t rounding = 512;         // of sizes and addresses
  static constexpr std::size_t small_limit = 1 << 20;  // the largest block of the small pool
  static constexpr std::size_t small_segment = 2 << 20;
  static constexpr std::size_t large_segment = 20 << 20;  // for blocks below large_limit
  static constexpr std::size_t large_limit = 10 << 20;    // from here on a segment has the size of its block...
  static constexpr std::size_t large_rounding = 2 << 20;  // ...rounded up to a multiple of this

  Allocator(DeviceState& device, Streams& streams, std::size_t capacity);
  ~Allocator();

  // Allocates memory for `stream`, aligned to `rounding`; from the capture's pool if the stream is capturing. Never
  // null: callers do not allocate 0 bytes. Throws OutOfMemory if the memory is insufficient even after cached segments
  // are released.
  Block* allocate(std::size_t bytes, Stream& stream);
  // Frees the block. Its stream can reuse it immediately; recorded streams must first reach this point.
  void free(Block* block);
  void record(Block* block, Stream& stream);

  static void* data(const Block* block);
  static std::size_t size(const Block* block);

  // Releases the completely free segments of a pool, after waiting for the device.
  void empty(PoolId pool = {0, 0});

  Statistics statistics() const;
  std::vector<SegmentView> snapshot() const;
  void reset_peak();
  void reset_accumulated();
  // Returns the free and total bytes of the device, from this process's point of view.
  std::pair<std::size_t, std::size_t> memory() const;
  bool owns(const void* address) const;

  // Private pools. A pool lives while it is retained. After that, blocks in use stay, and the next `empty` releases the
  // rest.
  void retain(PoolId pool);
  void release(PoolId pool);
  // Makes allocations of `stream` use `pool` until `unroute`.
  void route(Stream& stream, PoolId pool);
  void unroute(Stream& stream);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace soft
