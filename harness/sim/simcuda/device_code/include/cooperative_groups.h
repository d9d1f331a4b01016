// Cooperative groups of a block and of a warp. CUDA C++ Programming Guide, "Cooperative Groups". NVIDIA's header has
// them for devices only.
#pragma once

namespace cooperative_groups {

class thread_block {
 public:
  static void sync() { __syncthreads(); }
  static unsigned thread_rank() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
  static unsigned num_threads() { return blockDim.x * blockDim.y * blockDim.z; }
  static unsigned size() { return num_threads(); }
  static dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
  static dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
  static dim3 dim_threads() { return blockDim; }
  static dim3 group_dim() { return blockDim; }
};
SIMCUDA_INLINE thread_block this_thread_block() { return {}; }

// Blocks run one after the other, so none can wait for another one.
class grid_group {
 public:
  static bool is_valid() { return false; }
  static void sync() { simcuda_device::refuse("cooperative groups across the grid are not supported"); }
  static unsigned long long num_blocks() { return 1ull * gridDim.x * gridDim.y * gridDim.z; }
  static unsigned long long block_rank() {
    return blockIdx.x + 1ull * gridDim.x * (blockIdx.y + 1ull * gridDim.y * blockIdx.z);
  }
  static unsigned long long num_threads() { return num_blocks() * thread_block::num_threads(); }
  static unsigned long long size() { return num_threads(); }
  static unsigned long long thread_rank() {
    return block_rank() * thread_block::num_threads() + thread_block::thread_rank();
  }
  static dim3 group_dim() { return gridDim; }
};
SIMCUDA_INLINE grid_group this_grid() { return {}; }

// Lanes of a warp.
class coalesced_group {
 public:
  explicit coalesced_group(unsigned mask) : mask_(mask) {}
  void sync() const { __syncwarp(mask_); }
  unsigned num_threads() const { return static_cast<unsigned>(__popc(mask_)); }
  unsigned size() const { return num_threads(); }
  unsigned thread_rank() const { return rank_of(simcuda_device::lane()); }
  template <typename T>
  T shfl(T value, unsigned rank) const {
    return simcuda_device::shuffle(mask_, value, lane_of(rank % num_threads()));
  }
  template <typename T>
  T shfl_up(T value, unsigned delta) const {
    const unsigned rank = thread_rank();
    return simcuda_device::shuffle(mask_, value, lane_of(rank >= delta ? rank - delta : rank));
  }
  template <typename T>
  T shfl_down(T value, unsigned delta) const {
    const unsigned rank = thread_rank();
    return simcuda_device::shuffle(mask_, value, lane_of(rank + delta < num_threads() ? rank + delta : rank));
  }
  int any(int predicate) const { return __any_sync(mask_, predicate); }
  int all(int predicate) const { return __all_sync(mask_, predicate); }
  unsigned ballot(int predicate) const { return ranks_of(__ballot_sync(mask_, predicate)); }
  template <typename T>
  unsigned match_any(T value) const {
    return ranks_of(__match_any_sync(mask_, value));
  }

 protected:
  unsigned rank_of(unsigned lane) const { return static_cast<unsigned>(__popc(mask_ & ((1u << lane) - 1))); }
  unsigned lane_of(unsigned rank) const {
    unsigned lane = 0;
    while ((mask_ >> lane & 1) == 0 || rank_of(lane) != rank) ++lane;
    return lane;
  }
  unsigned ranks_of(unsigned lanes) const {
    unsigned ranks = 0;
    for (unsigned lane = 0; lane < 32; ++lane) ranks |= (lanes & mask_) >> lane & 1 ? 1u << rank_of(lane) : 0;
    return ranks;
  }

  unsigned mask_;
};
SIMCUDA_INLINE coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

template <unsigned lanes, typename Parent = thread_block>
class thread_block_tile : public coalesced_group {
  static_assert(lanes <= 32 && (lanes & (lanes - 1)) == 0, "the simulated CUDA has tiles of at most 32 threads");

 public:
  thread_block_tile() : coalesced_group(mask_of_tile()) {}
  static constexpr unsigned num_threads() { return lanes; }
  static constexpr unsigned size() { return lanes; }
  template <typename T>
  T shfl_xor(T value, unsigned bits) const {
    return simcuda_device::shuffle(mask_, value, lane_of(thread_rank() ^ bits));
  }
  static unsigned meta_group_rank() { return thread_block::thread_rank() / lanes; }
  static unsigned meta_group_size() { return (thread_block::num_threads() + lanes - 1) / lanes; }

 private:
  // The last warp of a block may have less than 32 threads.
  static unsigned mask_of_tile() {
    const unsigned rank = thread_block::thread_rank(), first = rank / 32 * 32;
    const unsigned rest = thread_block::num_threads() - first;
    const unsigned warp = rest >= 32 ? 0xffffffff : (1u << rest) - 1;
    const unsigned tile = lanes == 32 ? 0xffffffff : ((1u << lanes) - 1) << (rank % 32 / lanes * lanes);
    return warp & tile;
  }
};

template <unsigned lanes, typename Parent>
SIMCUDA_INLINE thread_block_tile<lanes, Parent> tiled_partition(const Parent&) {
  return {};
}
template <typename Group>
SIMCUDA_INLINE void sync(const Group& group) {
  group.sync();
}

template <typename T>
struct plus {
  T operator()(T left, T right) const { return left + right; }
};
template <typename T>
struct less {
  T operator()(T left, T right) const { return right < left ? right : left; }
};
template <typename T>
struct greater {
  T operator()(T left, T right) const { return left < right ? right : left; }
};
template <typename T>
struct bit_and {
  T operator()(T left, T right) const { return left & right; }
};
template <typename T>
struct bit_or {
  T operator()(T left, T right) const { return left | right; }
};
template <typename T>
struct bit_xor {
  T operator()(T left, T right) const { return left ^ right; }
};

// What cooperative_groups/reduce.h declares. All lanes get the result.
template <typename Group, typename T, typename Operation>
SIMCUDA_INLINE T reduce(const Group& group, T value, Operation operation) {
  T result = group.shfl(value, 0);
  for (unsigned rank = 1; rank < group.size(); ++rank) result = operation(result, group.shfl(value, rank));
  return result;
}

}  // namespace cooperative_groups
