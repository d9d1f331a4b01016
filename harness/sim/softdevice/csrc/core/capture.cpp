#include "capture.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "device.h"

namespace soft {

namespace {

std::atomic<int> lasting{0};

// The captures that last. Leaked, as all that lives as long as the process.
struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Capture::State>> captures;
};

Registry& registry() {
  static Registry* const registry = new Registry;
  return *registry;
}

thread_local const Places* places_in_use = nullptr;

// The nodes that come before a node, and itself.
std::vector<bool> before(const std::vector<Node>& nodes, int last) {
  std::vector<bool> reached(nodes.size(), false);
  if (last >= 0) reached[static_cast<std::size_t>(last)] = true;
  for (std::size_t index = nodes.size(); index-- > 0;) {
    if (!reached[index]) continue;
    for (const int need : nodes[index].needs) reached[static_cast<std::size_t>(need)] = true;
  }
  return reached;
}

}  // namespace

bool any_capture() { return lasting.load(std::memory_order_acquire) != 0; }

PlacesInUse::PlacesInUse(const Places& places) { places_in_use = &places; }
PlacesInUse::~PlacesInUse() { places_in_use = nullptr; }

std::uint64_t replay_place(const Counter* counter) {
  if (places_in_use == nullptr) throw std::logic_error("replay_place was called outside of a graph's replay");
  const auto found = places_in_use->find(counter);
  if (found == places_in_use->end()) throw std::logic_error("replay_place was called for a counter of another graph");
  return found->second;
}

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

void Capture::State::begin(const std::shared_ptr<Capture>& capture) {
  State& state = *capture->state_;
  const std::lock_guard list(registry().mutex);
  {
    const std::lock_guard lock(state.origin.mutex_);
    if (state.origin.capture_) throw Failure(Code::capture, "cannot capture a stream that is captured already");
    state.origin.capture_ = capture;
    state.origin.tail_ = -1;
    state.streams.push_back(&state.origin);
  }
  registry().captures.push_back(capture->state_);
  lasting.fetch_add(1, std::memory_order_release);
}

std::string Capture::State::end() {
  std::vector<Stream*> joined;
  {
    const std::lock_guard lock(mutex);
    ended = true;  // from now on nothing joins and nothing is added
    joined = streams;
  }
  std::vector<int> tails;
  for (Stream* stream : joined) {
    const std::lock_guard lock(stream->mutex_);
    stream->capture_.reset();
    tails.push_back(std::exchange(stream->tail_, -1));
  }
  {
    Registry& list = registry();
    const std::lock_guard lock(list.mutex);
    const auto own = std::find_if(list.captures.begin(), list.captures.end(),
                                  [this](const auto& capture) { return capture.get() == this; });
    list.captures.erase(own);
    lasting.fetch_sub(1, std::memory_order_release);
  }
  const std::lock_guard lock(mutex);
  if (!invalid.empty()) return invalid;
  const std::vector<bool> reached = before(nodes, tails.front());
  for (std::size_t index = 1; index < joined.size(); ++index) {
    if (tails[index] >= 0 && !reached[static_cast<std::size_t>(tails[index])]) {
      return "stream " + std::to_string(joined[index]->id()) + " of device " +
             std::to_string(joined[index]->device().index()) +
             " joined the capture, and the stream that began it does not wait for its last work";
    }
  }
  return {};
}

int Capture::State::add(const char* name, Work work, int tail) {
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

void Capture::State::admit(Device& device) {
  // An allocator asks streams, and those captures, while it is locked: it cannot be asked from within a capture's lock.
  device.allocator().retain(pool);
  {
    const std::lock_guard lock(mutex);
    const bool known = std::find(devices.begin(), devices.end(), &device) != devices.end();
    if (!known && !ended && invalid.empty()) {
      devices.push_back(&device);
      return;
    }
  }
  device.allocator().release(pool);
  const std::lock_guard lock(mutex);
  check();
}

void Capture::State::release_pools() {
  std::vector<Device*> retaining;
  {
    const std::lock_guard lock(mutex);
    retaining.swap(devices);
  }
  for (Device* device : retaining) device->allocator().release(pool);
}

void Capture::State::invalidate(const std::string& why) {
  const std::lock_guard lock(mutex);
  if (invalid.empty()) invalid = why;
}

void Capture::State::refuse(const std::string& why) {
  invalidate(why);
  throw Failure(Code::capture, "not permitted while a stream is captured: " + why);
}

void Capture::State::refuse(const Mark& mark, const std::string& why) {
  if (const auto capture = mark.capture_.lock()) capture->state_->refuse(why);
  throw Failure(Code::capture, "the capture has ended: " + why);
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
