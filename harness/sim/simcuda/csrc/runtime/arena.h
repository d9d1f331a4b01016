// The memory of a device: one unnamed file, mapped once, which is divided into allocations.
//
// A single file needs only one descriptor, and other processes can map any part of it (CUDA IPC). The file is larger
// than the device's memory, so that fragmentation does not exhaust it: the limit is the number of bytes taken. Freed
// pages are returned to the system.
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

  // Reserves addresses without memory; they cost nothing until they are written. Large ranges begin at a multiple of 2
  // MiB. Returns null if there is no room.
  void* reserve(std::size_t bytes);
  // Releases a whole range of `reserve`. Its contents are lost, and work that uses the range is an error.
  void release(void* address, std::size_t bytes);
  // Returns the pages to the system. The range stays reserved, and reads as zeros.
  void discard(void* address, std::size_t bytes);

  // Counts bytes against the device's memory; returns false if too few are left. Memory outside the file, as for
  // virtual memory management, is counted, too.
  bool take(std::size_t bytes);
  void give_back(std::size_t bytes);
  std::size_t used() const { return used_.load(std::memory_order_relaxed); }
  std::size_t free() const;

  // Returns the name of a device's file, by the device's number in the machine: a process that receives the file learns
  // the device from it.
  static std::string file_name(int number);
  int file() const { return file_; }
  std::size_t offset(const void* address) const {
    return static_cast<std::size_t>(static_cast<const char*>(address) - base_);
  }

 private:
  void insert(std::size_t begin, std::size_t size);  // adds a gap; the caller holds the mutex

  Device& device_;
  std::size_t span_ = 0;
  char* base_ = nullptr;
  int file_ = -1;
  std::atomic<std::size_t> used_{0};
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> gaps_;  // sizes by offset; no two gaps are adjacent
};

Arena& arena_of(Device& device);  // created at the first call; throws Error(cudaErrorMemoryAllocation)

}  // namespace simcuda
