#include "ipc_event.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "error.h"

namespace simcuda {

namespace {

constexpr std::size_t page_bytes = 4096;
constexpr auto interval = std::chrono::microseconds(200);
constexpr std::uint64_t magic_value = 0x74766563706d6973;

// The contents of a handle: the location of the page for other processes. The page exists while the event and the
// process do. Its inode distinguishes it from what has the same numbers later.
struct Content {
  std::uint64_t magic;
  std::uint64_t inode;
  pid_t process;
  int file;
};
static_assert(sizeof(Content) <= sizeof(cudaIpcEventHandle_t));

struct Watched {
  std::shared_ptr<IpcEventPage> page;
  std::uint64_t record;
  std::shared_ptr<work::Mark> mark;
};

struct Watch {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Watched> watched;
  bool started = false;

  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !watched.empty(); });
      std::vector<std::shared_ptr<work::Mark>> done;
      std::erase_if(watched, [&](const Watched& one) {
        if (one.page->counters->done.load() < one.record) return false;
        done.push_back(one.mark);
        return true;
      });
      lock.unlock();
      for (const auto& mark : done) mark->finish();
      if (done.empty()) std::this_thread::sleep_for(interval);  // another process cannot wake this one
      lock.lock();
    }
  }
};

Watch& watch() {
  static auto* const watch = new Watch;
  return *watch;
}

std::uint64_t inode_of(int file) {
  struct stat status{};
  check(fstat(file, &status) == 0, cudaErrorOperatingSystem);
  return status.st_ino;
}

}  // namespace

std::shared_ptr<IpcEventPage> IpcEventPage::make() {
  std::shared_ptr<IpcEventPage> page(new IpcEventPage);
  page->file = memfd_create("simcuda-event", MFD_CLOEXEC);
  check(page->file >= 0 && ftruncate(page->file, page_bytes) == 0, cudaErrorOperatingSystem);
  void* const address = mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->file, 0);
  check(address != MAP_FAILED, cudaErrorMemoryAllocation);
  page->counters = static_cast<Counters*>(address);
  return page;
}

std::shared_ptr<IpcEventPage> IpcEventPage::open(const cudaIpcEventHandle_t& handle) {
  Content content;
  std::memcpy(&content, &handle, sizeof content);
  check(content.magic == magic_value);
  std::shared_ptr<IpcEventPage> page(new IpcEventPage);
  const std::string path = "/proc/" + std::to_string(content.process) + "/fd/" + std::to_string(content.file);
  page->file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  check(page->file >= 0 && inode_of(page->file) == content.inode, cudaErrorInvalidResourceHandle);
  void* const address = mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->file, 0);
  check(address != MAP_FAILED, cudaErrorMapBufferObjectFailed);
  page->counters = static_cast<Counters*>(address);
  return page;
}

IpcEventPage::~IpcEventPage() {
  if (counters != nullptr) munmap(counters, page_bytes);
  if (file >= 0) close(file);
}

cudaIpcEventHandle_t IpcEventPage::handle() const {
  const Content content{magic_value, inode_of(file), getpid(), file};
  cudaIpcEventHandle_t handle{};
  std::memcpy(&handle, &content, sizeof content);
  return handle;
}

void IpcEventPage::finish(std::uint64_t record) {
  std::uint64_t before = counters->done.load();
  while (before < record && !counters->done.compare_exchange_weak(before, record)) {
  }
}

std::shared_ptr<work::Mark> IpcEventPage::mark(const std::shared_ptr<IpcEventPage>& page) {
  auto mark = std::make_shared<work::Mark>();
  const std::uint64_t record = page->counters->recorded.load();
  if (page->counters->done.load() >= record) {
    mark->finish();
    return mark;
  }
  Watch& all = watch();
  const std::lock_guard lock(all.mutex);
  if (!std::exchange(all.started, true)) std::thread([&all] { all.serve(); }).detach();
  all.watched.push_back({page, record, mark});
  all.changed.notify_one();
  return mark;
}

int watching_threads() {
  const std::lock_guard lock(watch().mutex);
  return watch().started;
}

}  // namespace simcuda
