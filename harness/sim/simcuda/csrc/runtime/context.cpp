#include "context.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "activity.h"
#include "arena.h"
#include "error.h"
#include "handles.h"
#include "ledger.h"
#include "pages.h"
#include "process.h"

namespace simcuda {

// The context of one device. Before it is made, it has no streams.
class Context {
 public:
  explicit Context(Device& device) : device_(device) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void wake();
  bool awake() const { return awake_.load(std::memory_order_acquire); }
  void drain();

  std::shared_ptr<Stream> legacy();
  std::shared_ptr<Stream> create(Stream::Kind kind, unsigned flags, int priority);
  void remove(Stream& stream);

 private:
  void add(const std::shared_ptr<Stream>& stream);
  std::vector<std::shared_ptr<work::Queue>> queues();

  Device& device_;
  std::atomic<bool> awake_{false};
  std::once_flag woken_;
  StreamOrder order_;
  std::shared_ptr<Stream> legacy_;
  std::mutex mutex_;  // guards the two lists
  std::vector<std::shared_ptr<Stream>> streams_;
  std::vector<std::shared_ptr<work::Queue>> leaving_;  // queues of destroyed streams, until they are idle
};

namespace {

Handles<Stream>& streams() {
  static auto* const streams = new Handles<Stream>;
  return *streams;
}

// Never destroyed: threads of the pool outlive the destructors of statics.
Context& context_of(const Device& device) {
  static auto* const contexts = [] {
    auto* const made = new std::vector<Context*>;
    for (int index = 0; index < device_count(); ++index) made->push_back(new Context(simcuda::device(index)));
    return made;
  }();
  return *(*contexts)[static_cast<std::size_t>(device.index)];
}

// The device memory that a context uses: no process ever gets all of the memory.
constexpr std::size_t context_memory(std::size_t memory) {
  return std::min(std::size_t{16} << 20, memory / 16 / page_size * page_size);
}

// The calling thread's default streams, one per device, created at first use.
struct PerThread {
  std::vector<std::shared_ptr<Stream>> streams;
  ~PerThread() {
    if (forked()) {
      // In a forked child, threads that no longer exist may hold the locks, so the streams are leaked.
      new std::vector<std::shared_ptr<Stream>>(std::move(streams));
      return;
    }
    for (const auto& stream : streams) {
      if (stream) destroy_stream(*stream);
    }
  }
};

std::shared_ptr<Stream> per_thread_stream(Device& device) {
  thread_local PerThread own;
  const auto place = static_cast<std::size_t>(device.index);
  if (own.streams.size() <= place) own.streams.resize(place + 1);
  auto& stream = own.streams[place];
  if (!stream) stream = context_of(device).create(Stream::Kind::per_thread, cudaStreamDefault, 0);
  return stream;
}

}  // namespace

void Context::wake() {
  if (awake()) return;
  bool made = false;
  std::call_once(woken_, [this, &made] {
    arena_of(device_).take(context_memory(device_.memory));
    ledger::open_context(device_.number);
    legacy_ = std::make_shared<Stream>(device_, order_, Stream::Kind::legacy, cudaStreamDefault, 0);
    order_.legacy = legacy_->queue_;
    add(legacy_);
    awake_.store(true, std::memory_order_release);
    made = true;
  });
  if (made) activity::report_context(device_.index);  // an observer may use the device
}

void Context::drain() {
  std::vector<std::shared_ptr<Mark>> marks;
  for (const auto& queue : queues()) {
    if (auto mark = queue->fence()) marks.push_back(std::move(mark));
  }
  if (pool().order() == work::Order::reversed) std::reverse(marks.begin(), marks.end());
  for (const auto& mark : marks) mark->wait();
  races::learn(device_.index);
}

std::shared_ptr<Stream> Context::legacy() {
  wake();
  return legacy_;
}

std::shared_ptr<Stream> Context::create(Stream::Kind kind, unsigned flags, int priority) {
  wake();
  const int clamped = std::clamp(priority, highest_priority, lowest_priority);
  auto stream = std::make_shared<Stream>(device_, order_, kind, flags, clamped);
  streams().add(stream);
  if (stream->created()) ledger::count_object(LedgerObject::stream, 1);
  add(stream);
  return stream;
}

void Context::add(const std::shared_ptr<Stream>& stream) {
  {
    const std::lock_guard lock(mutex_);
    streams_.push_back(stream);
  }
  if (stream->blocking()) {
    const std::lock_guard lock(order_.mutex);
    order_.blocking.push_back(stream->queue_);
  }
}

void Context::remove(Stream& stream) {
  const std::lock_guard lock(mutex_);
  std::erase_if(leaving_, [](const auto& queue) { return queue->idle(); });
  if (!stream.queue_->idle()) leaving_.push_back(stream.queue_);
  std::erase_if(streams_, [&](const auto& one) { return one.get() == &stream; });
}

std::vector<std::shared_ptr<work::Queue>> Context::queues() {
  const std::lock_guard lock(mutex_);
  std::erase_if(leaving_, [](const auto& queue) { return queue->idle(); });
  auto queues = leaving_;
  for (const auto& stream : streams_) queues.push_back(stream->queue_);
  return queues;
}

void wake(Device& device) { context_of(device).wake(); }
bool awake(const Device& device) { return context_of(device).awake(); }
void drain(Device& device) { context_of(device).drain(); }

std::shared_ptr<Stream> create_stream(Device& device, unsigned flags, int priority) {
  return context_of(device).create(Stream::Kind::created, flags, priority);
}

void destroy_stream(Stream& stream) {
  if (streams().remove(&stream) && stream.created()) ledger::count_object(LedgerObject::stream, -1);
  context_of(stream.device()).remove(stream);
}

std::shared_ptr<Stream> find_stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) return context_of(current_device()).legacy();
  if (handle == cudaStreamPerThread) return per_thread_stream(current_device());
  if (auto stream = streams().find(handle)) return stream;
  throw Error(cudaErrorInvalidResourceHandle);
}

}  // namespace simcuda
