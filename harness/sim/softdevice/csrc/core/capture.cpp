#include "capture.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "failure.h"

namespace soft {

namespace {

std::atomic<int> lasting{0};

// The running captures. Never destroyed, like all objects that live as long as the process.
struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture::State>> captures;
};

Registry& registry() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

bool any_capture() { return lasting.load(std::memory_order_acquire) != 0; }

PoolId Capture::pool() const { return state_->pool; }

std::uint64_t Capture::take(const std::shared_ptr<Counter>& counter, std::uint64_t count) {
  const std::lock_guard lock(state_->mutex);
  for (auto& [known, taken] : state_->counters) {
    if (known == counter) return std::exchange(taken, taken + count);
  }
  state_->counters.emplace_back(counter, count);
  return 0;
}

void Capture::invalidate(const std::string& why) { state_->invalidate(why); }

void Capture::State::list(const std::shared_ptr<State>& capture) {
  const std::lock_guard lock(registry().mutex);
  registry().captures.push_back(capture);
  lasting.fetch_add(1, std::memory_order_release);
}

void Capture::State::unlist() {
  auto& [mutex, captures] = registry();
  const std::lock_guard lock(mutex);
  const auto own =
      std::find_if(captures.begin(), captures.end(), [this](const auto& capture) { return capture.get() == this; });
  captures.erase(own);
  lasting.fetch_sub(1, std::memory_order_release);
}

std::vector<Stream*> Capture::State::end() {
  const std::lock_guard lock(mutex);
  ended = true;
  return streams;
}

int Capture::State::add(const char* name, work::Task work, int tail) {
  const std::lock_guard lock(mutex);
  check();
  nodes.push_back({name, std::move(work), tail >= 0 ? std::vector<int>{tail} : std::vector<int>{}});
  return static_cast<int>(nodes.size()) - 1;
}

int Capture::State::follow(int tail, int node) {
  const std::lock_guard lock(mutex);
  check();
  if (node < 0 || node == tail) return tail;
  if (tail < 0) return node;
  nodes.push_back({"join", nullptr, {std::min(tail, node), std::max(tail, node)}});
  return static_cast<int>(nodes.size()) - 1;
}

void Capture::State::join(Stream& stream) {
  const std::lock_guard lock(mutex);
  check();
  streams.push_back(&stream);
}

void Capture::State::admit(int device) {
  // An allocator with its lock held queries streams, which query captures, so a capture's lock must not be held here.
  keeper.retain(device, pool);
  {
    const std::lock_guard lock(mutex);
    const bool known = std::find(devices.begin(), devices.end(), device) != devices.end();
    if (!known && !ended && invalid.empty()) {
      devices.push_back(device);
      return;
    }
  }
  keeper.release(device, pool);
  const std::lock_guard lock(mutex);
  check();
}

void Capture::State::release_pools() {
  std::vector<int> retaining;
  {
    const std::lock_guard lock(mutex);
    retaining.swap(devices);
  }
  for (const int device : retaining) keeper.release(device, pool);
}

void Capture::State::invalidate(const std::string& why) {
  const std::lock_guard lock(mutex);
  if (invalid.empty()) invalid = why;
}

void Capture::State::refuse(const std::string& why) {
  invalidate(why);
  throw Failure(Code::capture, "not permitted while a stream is captured: " + why);
}

void Capture::State::check() const {
  if (ended) throw Failure(Code::capture, "the capture has ended");
  if (!invalid.empty()) throw Failure(Code::capture, "the capture was invalidated: " + invalid);
}

void forbid_while_capturing(const char* call) {
  if (!any_capture()) return;
  const std::lock_guard lock(registry().mutex);
  for (const auto& capture : registry().captures) {
    const bool forbids = capture->mode == CaptureMode::global ||
                         (capture->mode == CaptureMode::thread_local_ && capture->thread == std::this_thread::get_id());
    if (forbids) capture->refuse(call);
  }
}

}  // namespace soft
