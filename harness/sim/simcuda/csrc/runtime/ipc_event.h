// Events that processes share: a page of counters per event. A thread polls the events that streams of this process
// wait for.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "../../../softdevice/csrc/core/queue.h"

namespace simcuda {

struct IpcEventPage {
  struct Counters {
    std::atomic<std::uint64_t> recorded;  // number of records
    std::atomic<std::uint64_t> done;      // the last completed record
  };

  static std::shared_ptr<IpcEventPage> make();                                    // throws Error
  static std::shared_ptr<IpcEventPage> open(const cudaIpcEventHandle_t& handle);  // throws Error
  ~IpcEventPage();
  IpcEventPage(const IpcEventPage&) = delete;
  IpcEventPage& operator=(const IpcEventPage&) = delete;

  cudaIpcEventHandle_t handle() const;
  std::uint64_t record() { return counters->recorded.fetch_add(1) + 1; }
  void finish(std::uint64_t record);
  bool done() const { return counters->done.load() >= counters->recorded.load(); }
  // Returns a mark that finishes when the last record is complete.
  static std::shared_ptr<work::Mark> mark(const std::shared_ptr<IpcEventPage>& page);

  Counters* counters = nullptr;
  int file = -1;
  int device = 0;

 private:
  IpcEventPage() = default;
};

int watching_threads();  // 1 after the thread was started

}  // namespace simcuda
