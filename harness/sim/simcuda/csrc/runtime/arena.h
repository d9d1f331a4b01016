// The memory of a device: one file without a name, mapped once, from which allocations are cut.
//
// One file for all keeps descriptors few, and other processes can map any part of it (CUDA IPC). The file is larger
// than the device's memory, so that scattered allocations do not use it up: what counts is the number of bytes taken.
// Pages that are given back go back to the system.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace simcuda {

class Device;

class Arena {
 public:
  explicit Arena(Device& device);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Addresses without memory behind them as yet; as long as nothing is written they cost nothing. Large ranges begin
  // at a multiple of 2 MiB. Null if there is no room.
  void* reserve(std::size_t bytes);
  // The range of `reserve`, whole. What was written is gone, and work that uses the range is an error.
  void release(void* address, std::size_t bytes);
  // Gives the pages back to the system; the range stays reserved, and reads as zeros.
  void discard(void* address, std::size_t bytes);

  // Counts bytes against the device's memory; false if there are not as many. Memory that is not cut from the file,
  // as of virtual memory management, is counted as well.
  bool take(std::size_t bytes);
  void give_back(std::size_t bytes);
  std::size_t used() const { return used_.load(std::memory_order_relaxed); }
  std::size_t free() const;

  // The name of the file of a device, by its number in the machine: a process that got the file knows whose it is.
  static std::string file_name(int number);
  int file() const { return file_; }
  std::size_t offset(const void* address) const {
    return static_cast<std::size_t>(static_cast<const char*>(address) - base_);
  }

 private:
  void insert(std::size_t begin, std::size_t size);  // a gap; the caller holds the mutex

  Device& device_;
  std::size_t span_ = 0;
  char* base_ = nullptr;
  int file_ = -1;
  std::atomic<std::size_t> used_{0};
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> gaps_;  // offset and size, none next to another
};

Arena& arena_of(Device& device);  // made at the first call; throws Error(cudaErrorMemoryAllocation)

}  // namespace simcuda
