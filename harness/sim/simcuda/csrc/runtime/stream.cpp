#include "stream.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "access.h"
#include "activity.h"
#include "device.h"
#include "error.h"
#include "ledger.h"
#include "process.h"

namespace simcuda {

namespace {

unsigned long long next_id() {
  static std::atomic<unsigned long long> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

Stream::Stream(Device& device, StreamOrder& order, Kind kind, unsigned flags, int priority)
    : device_(device),
      order_(order),
      kind_(kind),
      flags_(flags),
      priority_(priority),
      id_(next_id()),
      queue_(std::make_shared<work::Queue>(pool(), priority)),
      timeline_(device.index, id_,
                legacy()     ? races::Role::legacy
                : blocking() ? races::Role::blocking
                             : races::Role::other) {}

void Stream::push(const char* name, Work work, Begin begin) {
  std::vector<Item> items;
  std::shared_ptr<Mark> begun;
  if (begin) {
    begun = std::make_shared<Mark>();
    items.push_back(
        {nullptr,
         [&device = device_, name, begin = std::move(begin), begun] { begin_guarded(device, name, begin, begun); },
         nullptr});
  }
  items.push_back(
      {std::move(begun),
       [&device = device_, name, work = std::move(work), ticket = activity::ticket(activity_id())]() mutable {
         const activity::Scope scope(ticket);
         run_guarded(device, name, work);
         work = nullptr;
       },
       nullptr});
  push(std::move(items));
}

void Stream::push(std::vector<Item> items) {
  if (legacy()) {
    const std::lock_guard lock(order_.mutex);
    std::vector<Item> all;
    auto& blocking = order_.blocking;
    for (const auto& queue : blocking) {
      if (auto mark = queue->fence()) all.push_back({std::move(mark), nullptr, nullptr});
    }
    if (pool().order() == work::Order::reversed) std::reverse(all.begin(), all.end());
    // Only this list still refers to the queue of a destroyed stream.
    std::erase_if(blocking, [](const auto& queue) { return queue.use_count() == 1 && queue->idle(); });
    std::move(items.begin(), items.end(), std::back_inserter(all));
    queue_->push(std::move(all));
  } else if (blocking()) {
    const std::lock_guard lock(order_.mutex);
    if (auto mark = order_.legacy->fence()) items.insert(items.begin(), Item{std::move(mark), nullptr, nullptr});
    queue_->push(std::move(items));
  } else if (items.size() == 1) {
    queue_->push(std::move(items.front()));
  } else {
    queue_->push(std::move(items));
  }
}

void Stream::wait(std::shared_ptr<Mark> mark) {
  if (mark == nullptr) return;
  races::wait(timeline_, *mark);
  if (mark->done()) return;
  std::vector<Item> items;
  items.push_back({std::move(mark), nullptr, nullptr});
  push(std::move(items));
}

std::shared_ptr<Mark> Stream::mark(Work reached) {
  auto mark = std::make_shared<Mark>();
  races::record(timeline_, *mark);
  // A mark on a blocking stream must also wait for earlier work on the legacy stream.
  if (idle() && (!blocking() || order_.legacy->idle())) {
    if (reached) reached();
    mark->finish();
  } else {
    std::vector<Item> items;
    items.push_back({nullptr, std::move(reached), mark});
    push(std::move(items));
  }
  return mark;
}

bool Stream::poll() {
  if (idle()) return true;
  if (legacy()) {
    const std::lock_guard lock(order_.mutex);
    for (const auto& queue : order_.blocking) queue->poll();
  }
  queue_->poll();
  return false;
}

bool Stream::idle() {
  if (!queue_->idle()) return false;
  if (!legacy()) return true;
  const std::lock_guard lock(order_.mutex);
  return std::all_of(order_.blocking.begin(), order_.blocking.end(), [](const auto& queue) { return queue->idle(); });
}

namespace {

// Runs the body with the device as the current one. Returns whether it did not throw.
template <typename Body>
bool guarded(Device& device, const char* name, const Body& body) {
  set_current_index(device.index);
  const WorkScope scope(device);
  try {
    body();
    return true;
  } catch (const Error& error) {
    device.fail(error.code, name);
  } catch (const std::exception& error) {
    device.fail(cudaErrorAssert, (std::string(name) + ": " + error.what()).c_str());
  } catch (...) {
    device.fail(cudaErrorAssert, (std::string(name) + ": an exception that is no std::exception").c_str());
  }
  return false;
}

}  // namespace

void run_guarded(Device& device, const char* name, const Work& work, std::uint64_t node) {
  if (!work || device.error() != cudaSuccess || pool().abandoned()) return;
  const ledger::Busy busy(device.number);
  const activity::Work record(device.index, name, node);
  guarded(device, name, work);
}

void begin_guarded(Device& device, const char* name, const Begin& begin, const std::shared_ptr<Mark>& mark) {
  const bool possible = device.error() == cudaSuccess && !pool().abandoned();
  if (!possible || !guarded(device, name, [&] { begin(mark); })) mark->finish();
}

}  // namespace simcuda
