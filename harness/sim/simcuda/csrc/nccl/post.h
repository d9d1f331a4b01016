// A process's contribution to its communicators: memory that others read, and a bell that they ring.
//
// Both are in one unnamed file, like the memory of a device. Other processes of the same user find the file in /proc
// while the process lives, and keep their mappings after that.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace simcuda::nccl {

// A word in shared memory on which threads of any process sleep until it changes.
struct Bell {
  std::atomic<std::uint32_t> rung;
  std::atomic<std::uint32_t> sleepers;

  std::uint32_t seen() const { return rung.load(); }
  void ring();
  void sleep(std::uint32_t seen);  // returns immediately if it was rung since; may wake up spuriously
};

// A file that any process of the user can map while its creator has it open.
struct SharedFile {
  pid_t process = 0;
  int file = -1;
};
SharedFile make_shared_file(const char* name, std::size_t bytes);  // `file` is -1 on failure
void* map_shared_file(const SharedFile& file, std::size_t bytes);  // null if the file is gone

class Post {
 public:
  static Post* own();                                // of this process; null if there is no memory
  static std::shared_ptr<Post> of(SharedFile file);  // of any process; null if the process is gone
  ~Post();
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  const SharedFile& file() const { return file_; }
  Bell& bell() { return *reinterpret_cast<Bell*>(base_); }
  char* at(std::uint64_t offset) { return base_ + offset; }

  // Only for the process's own post.
  std::uint64_t allocate(std::size_t bytes);  // 0 if there is no room
  void release(std::uint64_t offset, std::size_t bytes);

 private:
  Post(SharedFile file, char* base) : file_(file), base_(base) {}

  const SharedFile file_;
  char* const base_;
  bool own_ = false;
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> gaps_;  // sizes by offset; no two gaps are adjacent
};

}  // namespace simcuda::nccl
