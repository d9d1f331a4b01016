#include "stream.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "access.h"
#include "activity.h"
#include "call.h"
#include "device.h"
#include "handles.h"
#include "ledger.h"
#include "process.h"

namespace simcuda {

namespace {

Handles<Stream>& handles() {
  static auto* const handles = new Handles<Stream>;
  return *handles;
}

unsigned long long next_id() {
  static std::atomic<unsigned long long> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

// The calling thread's own default streams, one a device, made at their first use.
struct PerThread {
  std::vector<std::shared_ptr<Stream>> streams;
  ~PerThread() {
    if (forked()) {
      // The locks may be held by threads that this process does not have.
      new std::vector<std::shared_ptr<Stream>>(std::move(streams));
      return;
    }
    for (const auto& stream : streams) {
      if (stream) stream->destroy();
    }
  }
};

std::shared_ptr<Stream> per_thread_stream(Device& device) {
  thread_local PerThread own;
  const auto place = static_cast<std::size_t>(device.index);
  if (own.streams.size() <= place) own.streams.resize(place + 1);
  auto& stream = own.streams[place];
  if (!stream) stream = Stream::create(device, cudaStreamDefault, 0, Stream::Kind::per_thread);
  return stream;
}

}  // namespace

Stream::Stream(Device& device, Kind kind, unsigned flags, int priority)
    : device_(device),
      kind_(kind),
      flags_(flags),
      priority_(priority),
      id_(next_id()),
      queue_(std::make_shared<work::Queue>(pool(), priority)) {}

std::shared_ptr<Stream> Stream::create(Device& device, unsigned flags, int priority, Kind kind) {
  device.wake();
  auto stream = std::make_shared<Stream>(device, kind, flags, std::clamp(priority, highest_priority, lowest_priority));
  handles().add(stream);
  device.add(stream);
  return stream;
}

void Stream::destroy() {
  handles().remove(this);
  device_.remove(*this);
}

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
    const std::lock_guard lock(device_.order_);
    std::vector<Item> all;
    auto& blocking = device_.blocking_;
    for (const auto& queue : blocking) {
      if (auto mark = queue->fence()) all.push_back({std::move(mark), nullptr, nullptr});
    }
    // Only this list knows the queue of a stream that was destroyed.
    std::erase_if(blocking, [](const auto& queue) { return queue.use_count() == 1 && queue->idle(); });
    std::move(items.begin(), items.end(), std::back_inserter(all));
    queue_->push(std::move(all));
  } else if (blocking()) {
    const std::lock_guard lock(device_.order_);
    if (auto mark = device_.legacy_->queue_->fence())
      items.insert(items.begin(), Item{std::move(mark), nullptr, nullptr});
    queue_->push(std::move(items));
  } else if (items.size() == 1) {
    queue_->push(std::move(items.front()));
  } else {
    queue_->push(std::move(items));
  }
}

void Stream::wait(std::shared_ptr<Mark> mark) {
  if (mark == nullptr || mark->done()) return;
  std::vector<Item> items;
  items.push_back({std::move(mark), nullptr, nullptr});
  push(std::move(items));
}

std::shared_ptr<Mark> Stream::mark(Work reached) {
  auto mark = std::make_shared<Mark>();
  // What comes after work of the legacy stream is not done before that is.
  if (idle() && (!blocking() || device_.legacy_->queue_->idle())) {
    if (reached) reached();
    mark->finish();
  } else {
    std::vector<Item> items;
    items.push_back({nullptr, std::move(reached), mark});
    push(std::move(items));
  }
  return mark;
}

bool Stream::idle() {
  if (!queue_->idle()) return false;
  if (!legacy()) return true;
  const std::lock_guard lock(device_.order_);
  return std::all_of(device_.blocking_.begin(), device_.blocking_.end(),
                     [](const auto& queue) { return queue->idle(); });
}

std::shared_ptr<Stream> find_stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) return current_device().legacy_stream();
  if (handle == cudaStreamPerThread) return per_thread_stream(current_device());
  if (auto stream = handles().find(handle)) return stream;
  throw Error(cudaErrorInvalidResourceHandle);
}

namespace {

// Whether nothing was thrown.
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

SIMCUDA_EXPORT std::uint64_t simcudaStreamNumber(const void* handle, int per_thread) {
  using namespace simcuda;
  if (forked()) return simcuda_no_stream;
  try {
    const auto stream = static_cast<cudaStream_t>(const_cast<void*>(handle));
    return find_stream(per_thread && handle == nullptr ? cudaStreamPerThread : stream)->activity_id();
  } catch (const Error&) {
    return simcuda_no_stream;
  }
}
