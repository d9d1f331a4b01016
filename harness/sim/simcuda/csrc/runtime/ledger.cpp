#include "ledger.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "simcuda_ledger.h"

namespace simcuda::ledger {

namespace {

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::atomic<bool> forked{false};

// The process removes the file at its end. A forked child shares the mapping, and must not remove the file.
struct Page {
  LedgerPage* page = nullptr;
  std::string path;

  Page() {
    const std::string folder = ledger_folder(), pid = std::to_string(getpid());
    mkdir(folder.c_str(), 0700);
    path = folder + "/" + pid + "-" + process_start(pid);
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (ftruncate(file, sizeof(LedgerPage)) == 0) {
      void* const memory = mmap(nullptr, sizeof(LedgerPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (memory != MAP_FAILED) page = static_cast<LedgerPage*>(memory);
    }
    close(file);
    if (page == nullptr) {
      unlink(path.c_str());
    } else {
      page->magic = LedgerPage::magic_value;
      pthread_atfork(nullptr, nullptr, [] { forked = true; });
    }
  }

  // The mapping stays, since threads may still be working.
  ~Page() {
    if (page != nullptr && !forked) unlink(path.c_str());
  }
};

LedgerDevice* entry(int device) {
  static Page page;
  if (page.page == nullptr || forked || device < 0 || device >= machine::most_devices) return nullptr;
  return &page.page->devices[device];
}

}  // namespace

void open_context(int device) {
  if (auto* const own = entry(device)) own->context.store(1);
}

void close_context(int device) {
  if (auto* const own = entry(device)) own->context.store(0);
}

void add_memory(int device, std::int64_t bytes) {
  if (auto* const own = entry(device)) own->used.fetch_add(static_cast<std::uint64_t>(bytes));
}

Busy::Busy(int device) : device_(device) {
  if (auto* const own = entry(device)) {
    if (own->running.fetch_add(1) == 0) own->since.store(now());
  }
}

Busy::~Busy() {
  if (auto* const own = entry(device_)) {
    // Read the time before decrementing the counter: work that begins right after that changes the time.
    const std::int64_t since = own->since.load();
    if (own->running.fetch_sub(1) == 1) own->busy.fetch_add(static_cast<std::uint64_t>(now() - since));
  }
}

}  // namespace simcuda::ledger
