#include "progress.h"

#include <pthread.h>
#include <signal.h>

#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "../include/simcuda_shared.h"
#include "post.h"

namespace simcuda::nccl {

namespace {

class Watcher {
 public:
  void add(std::shared_ptr<Waiting> waiting) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(waiting));
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
      std::vector<std::shared_ptr<Waiting>> all;
      {
        const std::lock_guard lock(mutex_);
        all = waiting_;
      }
      bool any = false;
      for (const auto& one : all) {
        if (!one->arrived()) continue;
        any = true;
        {
          const std::lock_guard lock(mutex_);
          std::erase(waiting_, one);
        }
        one->go_on();
      }
      all.clear();
      if (!any) bell.sleep(seen);
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Waiting>> waiting_;
  bool started_ = false;
};

Watcher& watcher() {
  static auto* const watcher = new Watcher;
  return *watcher;
}

}  // namespace

void start_watching() { watcher().start(); }
void watch(std::shared_ptr<Waiting> waiting) { watcher().add(std::move(waiting)); }
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
