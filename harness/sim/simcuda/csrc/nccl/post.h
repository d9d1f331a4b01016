// What a process lends to the others of a communicator: memory that they read, and a bell that they ring.
//
// One file without a name, as the memory of a device: other processes of the same user find it in /proc as long as the
// process lives, and keep what they have mapped.
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
  void sleep(std::uint32_t seen);  // returns at once if it was rung since; may return for no reason
};

// A file that any process of the user can map as long as its maker has it open.
struct SharedFile {
  pid_t process = 0;
  int file = -1;
};
SharedFile make_shared_file(const char* name, std::size_t bytes);  // `file` is -1 if it cannot be made
void* map_shared_file(const SharedFile& file, std::size_t bytes);  // null if it is not there

class Post {
 public:
  static Post* own();                                // of this process; null if there is no memory for it
  static std::shared_ptr<Post> of(SharedFile file);  // of any process; null if that is gone
  ~Post();
  Post(const Post&) = delete;
  Post& operator=(const Post&) = delete;

  const SharedFile& file() const { return file_; }
  Bell& bell() { return *reinterpret_cast<Bell*>(base_); }
  char* at(std::uint64_t offset) { return base_ + offset; }

  // Of the own one.
  std::uint64_t allocate(std::size_t bytes);  // 0 if there is no room
  void release(std::uint64_t offset, std::size_t bytes);

 private:
  Post(SharedFile file, char* base) : file_(file), base_(base) {}

  const SharedFile file_;
  char* const base_;
  bool own_ = false;
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> gaps_;  // offset and size, none next to another
};

}  // namespace simcuda::nccl
