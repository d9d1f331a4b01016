// Memory pools, and memory that is allocated and freed in stream order (cudaMallocAsync).
//
// CUDA Runtime API, "Stream Ordered Memory Allocator". A pool takes chunks from the device and cuts them. A piece that
// was freed can be had again by the stream that freed it, at once; by other streams when the work before the free is
// done, or, if there is nothing else, with a wait for that work. Chunks that nobody uses go back to the device when the
// program waits for work, as far as the pool has more than its release threshold.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "allocations.h"
#include "device.h"
#include "stream.h"

namespace simcuda {

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  Pool(Device& device, std::size_t most) : device_(device), most_(most) {}
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  Device& device() const { return device_; }
  cudaMemPool_t handle() { return reinterpret_cast<cudaMemPool_t>(this); }

  // Throws Error(cudaErrorMemoryAllocation).
  void* allocate(std::size_t bytes, Stream& stream);
  // `stream` is null if all work that used it is done.
  void free(char* address, Stream* stream);
  // Gives unused chunks back as long as the pool has more than `keep` bytes.
  void trim(std::size_t keep);
  void trim_to_threshold();

  void attribute(cudaMemPoolAttr which, void* value);            // throws Error(cudaErrorInvalidValue)
  void set_attribute(cudaMemPoolAttr which, const void* value);  // the same
  void set_access(const cudaMemAccessDesc& access);
  cudaMemAccessFlags access(int device);

 private:
  struct Piece {
    std::size_t size = 0;
    bool free = true;
    unsigned long long stream = 0;             // that freed it; 0 if its work is done
    std::vector<std::shared_ptr<Mark>> marks;  // not to be used by other streams before these are done
    bool ready();
  };
  struct Chunk {
    std::size_t size = 0;
    std::map<char*, Piece> pieces;
  };
  // The caller of these holds the mutex.
  bool grow(std::size_t bytes);
  char* find(std::size_t bytes, const Stream& stream);  // null if there is none
  char* find_with_wait(std::size_t bytes, Stream& stream);
  char* cut(Chunk& chunk, std::map<char*, Piece>::iterator piece, std::size_t bytes);
  void join(Chunk& chunk);
  void drop(std::size_t keep);

  Device& device_;
  const std::size_t most_;  // bytes, 0 for no limit but the device's
  std::mutex mutex_;
  std::map<char*, Chunk> chunks_;
  std::uint64_t threshold_ = 0, reserved_ = 0, reserved_high_ = 0, used_ = 0, used_high_ = 0;
  // By event dependencies, opportunistic, by internal dependencies. Only the last is respected: the others allow what
  // need not happen, or what a program cannot tell from luck.
  int reuse_[3] = {1, 1, 1};
  std::map<int, cudaMemAccessFlags> access_;
};

std::shared_ptr<Pool> find_pool(cudaMemPool_t handle);  // throws Error(cudaErrorInvalidValue)
std::shared_ptr<Pool> default_pool(Device& device);
std::shared_ptr<Pool> current_pool(Device& device);  // the one that the device's streams use
void set_current_pool(const std::shared_ptr<Pool>& pool);
std::shared_ptr<Pool> create_pool(Device& device, std::size_t most);
// What was allocated from it stays, and the pool with it. Throws Error(cudaErrorInvalidValue) for a default pool.
void destroy_pool(const std::shared_ptr<Pool>& pool);

// Frees memory of kind `pool` that was removed from the table.
void free_in_pool(const Allocation& allocation, Stream* stream);
// The program has waited for work of the device: called at the end of each call that does.
void release_after_wait(Device& device);
// Gives all that pools do not use back to the device.
void trim_pools(Device& device);

}  // namespace simcuda
