// Memory pools, and memory that is allocated and freed in stream order (cudaMallocAsync).
//
// CUDA Runtime API, "Stream Ordered Memory Allocator". A pool takes chunks from the device and divides them. The stream
// that freed a piece can reuse it immediately. Other streams can reuse it when the work before the free is done, or, if
// there is no other memory, with a wait for that work. When the program waits for work, unused chunks are returned to
// the device while the pool has more than its release threshold.
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
  // `stream` is null if all work that used the memory is done.
  void free(char* address, Stream* stream);
  // Returns unused chunks to the device while the pool has more than `keep` bytes.
  void trim(std::size_t keep);
  void trim_to_threshold();

  void attribute(cudaMemPoolAttr which, void* value);            // throws Error(cudaErrorInvalidValue)
  void set_attribute(cudaMemPoolAttr which, const void* value);  // throws the same error
  void set_access(const cudaMemAccessDesc& access);
  cudaMemAccessFlags access(int device);

 private:
  struct Piece {
    std::size_t size = 0;
    bool free = true;
    unsigned long long stream = 0;             // the stream that freed it; 0 if its work is done
    std::vector<std::shared_ptr<Mark>> marks;  // other streams may use the piece when these are done
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
  const std::size_t most_;  // bytes; 0: only the device's limit
  std::mutex mutex_;
  std::map<char*, Chunk> chunks_;
  std::uint64_t threshold_ = 0, reserved_ = 0, reserved_high_ = 0, used_ = 0, used_high_ = 0;
  // The reuse policies: event dependencies, opportunistic, internal dependencies. Only the last one has an effect: the
  // others permit reuse that need not happen, or that a program cannot distinguish from chance.
  int reuse_[3] = {1, 1, 1};
  std::map<int, cudaMemAccessFlags> access_;
};

std::shared_ptr<Pool> find_pool(cudaMemPool_t handle);  // throws Error(cudaErrorInvalidValue)
std::shared_ptr<Pool> default_pool(Device& device);
std::shared_ptr<Pool> current_pool(Device& device);  // the current pool of the device's streams
void set_current_pool(const std::shared_ptr<Pool>& pool);
std::shared_ptr<Pool> create_pool(Device& device, std::size_t most);
// Allocations from the pool stay valid, and keep it alive. Throws Error(cudaErrorInvalidValue) for a default pool.
void destroy_pool(const std::shared_ptr<Pool>& pool);

// Frees memory of kind `pool` that is already removed from the table.
void free_in_pool(const Allocation& allocation, Stream* stream);
// Called at the end of each call that has waited for work of the device.
void release_after_wait(Device& device);
// Returns all unused memory of pools to the device.
void trim_pools(Device& device);

}  // namespace simcuda
