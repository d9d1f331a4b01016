#include "progress.h"

#include <pthread.h>
#include <signal.h>

#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "../include/simcuda_shared.h"

namespace simcuda::nccl {

namespace {

struct Watched {
  std::shared_ptr<Launch> launch;
  std::shared_ptr<Run> run;
};

class Watcher {
 public:
  void add(Watched watched) {
    {
      const std::lock_guard lock(mutex_);
      watched_.push_back(std::move(watched));
    }
    look_again();
  }

  void start() {
    const std::lock_guard lock(mutex_);
    if (std::exchange(started_, true)) return;
    quiet_thread([this] { serve(); }).detach();
    simcudaCountThread();
  }

 private:
  [[noreturn]] void serve() {
    Bell& bell = Post::own()->bell();
    while (true) {
      const std::uint32_t seen = bell.seen();
      std::vector<Watched> all;
      {
        const std::lock_guard lock(mutex_);
        all = watched_;
      }
      bool any = false;
      for (const Watched& one : all) {
        one.launch->communicator->reclaim();
        if (!one.launch->communicator->arrived(*one.launch, *one.run)) continue;
        any = true;
        {
          const std::lock_guard lock(mutex_);
          std::erase_if(watched_, [&](const Watched& each) { return each.run == one.run; });
        }
        one.run->finish();
      }
      all.clear();
      if (!any) bell.sleep(seen);
    }
  }

  std::mutex mutex_;
  std::vector<Watched> watched_;
  bool started_ = false;
};

Watcher& watcher() {
  static auto* const watcher = new Watcher;
  return *watcher;
}

}  // namespace

void start_watching() { watcher().start(); }
void watch(const std::shared_ptr<Launch>& launch, const std::shared_ptr<Run>& run) { watcher().add({launch, run}); }
void look_again() { Post::own()->bell().ring(); }

std::thread quiet_thread(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace simcuda::nccl
