#include "post.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <iterator>
#include <string>
#include <vector>

namespace simcuda::nccl {

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t span = std::size_t{16} << 30;  // address space only
constexpr std::size_t large = std::size_t{4} << 20;  // memory of larger blocks is returned to the system

constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

void Bell::ring() {
  rung.fetch_add(1);
  if (sleepers.load() != 0) syscall(SYS_futex, &rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Bell::sleep(std::uint32_t seen) {
  sleepers.fetch_add(1);
  if (rung.load() == seen) syscall(SYS_futex, &rung, FUTEX_WAIT, seen, nullptr, nullptr, 0);
  sleepers.fetch_sub(1);
}

SharedFile make_shared_file(const char* name, std::size_t bytes) {
  const int file = memfd_create(name, MFD_CLOEXEC);
  if (file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    close(file);
    return {};
  }
  return {getpid(), file};
}

void* map_shared_file(const SharedFile& file, std::size_t bytes) {
  int opened = file.file;
  if (file.process != getpid()) {
    const std::string path = "/proc/" + std::to_string(file.process) + "/fd/" + std::to_string(file.file);
    opened = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (opened < 0) return nullptr;
  }
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, opened, 0);
  if (opened != file.file || file.process != getpid()) close(opened);
  return address == MAP_FAILED ? nullptr : address;
}

Post* Post::own() {
  static Post* const own = []() -> Post* {
    const SharedFile file = make_shared_file("simnccl-post", span);
    void* const base = file.file < 0 ? nullptr : map_shared_file(file, span);
    if (base == nullptr) return nullptr;
    auto* const made = new Post(file, static_cast<char*>(base));
    made->own_ = true;
    made->gaps_[page] = span - page;
    return made;
  }();
  return own;
}

std::shared_ptr<Post> Post::of(SharedFile file) {
  if (file.process == getpid()) return {own(), [](Post*) {}};
  static std::mutex mutex;
  static auto* const known = new std::map<std::pair<pid_t, int>, std::weak_ptr<Post>>;
  const std::lock_guard lock(mutex);
  auto& found = (*known)[{file.process, file.file}];
  if (auto there = found.lock()) return there;
  void* const base = map_shared_file(file, span);
  if (base == nullptr) return nullptr;
  std::shared_ptr<Post> made(new Post(file, static_cast<char*>(base)));
  found = made;
  return made;
}

Post::~Post() { munmap(base_, span); }

std::uint64_t Post::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const auto [offset, room] = *gap;
    if (room < size) continue;
    gaps_.erase(gap);
    if (room > size) gaps_[offset + size] = room - size;
    return offset;
  }
  return 0;
}

void Post::release(std::uint64_t offset, std::size_t bytes) {
  std::size_t size = rounded(bytes);
  if (size >= large) {
    const std::uint64_t begin = (offset + page - 1) / page * page, end = (offset + size) / page * page;
    madvise(base_ + begin, end - begin, MADV_REMOVE);
  }
  const std::lock_guard lock(mutex_);
  auto next = gaps_.lower_bound(offset);
  if (next != gaps_.end() && next->first == offset + size) {
    size += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  gaps_[offset] = size;
}

}  // namespace simcuda::nccl
