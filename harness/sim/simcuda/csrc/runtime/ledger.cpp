#include "ledger.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

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
      if (const char* const record = std::getenv("SIMCUDA_RECORD"); record != nullptr && *record != 0) {
        const std::string place = record + path.substr(folder.size());
        if (link(path.c_str(), place.c_str()) != 0 && errno != EEXIST) {
          std::fprintf(stderr, "Simulated CUDA: SIMCUDA_RECORD='%s': cannot keep a record (%s)\n", record,
                       std::strerror(errno));
        }
      }
      pthread_atfork(nullptr, nullptr, [] { forked = true; });
    }
  }

  // The mapping stays, since threads may still be working.
  ~Page() {
    if (page != nullptr && !forked) unlink(path.c_str());
  }
};

LedgerPage* own_page() {
  static Page page;
  return forked ? nullptr : page.page;
}

LedgerDevice* entry(int device) {
  LedgerPage* const page = own_page();
  return page == nullptr || device < 0 || device >= machine::most_devices ? nullptr : &page->devices[device];
}

}  // namespace

void open_context(int device) {
  if (auto* const own = entry(device)) own->context.store(1);
}

void close_context(int device) {
  if (auto* const own = entry(device)) own->context.store(0);
}

void add_memory(int device, std::int64_t bytes) {
  auto* const own = entry(device);
  if (own == nullptr) return;
  const std::uint64_t used = own->used.fetch_add(static_cast<std::uint64_t>(bytes)) + static_cast<std::uint64_t>(bytes);
  if (bytes < 0) return;
  std::uint64_t peak = own->peak.load();
  while (peak < used && !own->peak.compare_exchange_weak(peak, used)) {
  }
}

void count_kernel(int device) {
  if (auto* const own = entry(device)) own->kernels.fetch_add(1, std::memory_order_relaxed);
}

void count_object(LedgerObject kind, int change) {
  if (auto* const page = own_page()) page->objects[static_cast<int>(kind)].fetch_add(change);
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
