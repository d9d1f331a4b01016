#include "streams.h"

#include <string>
#include <system_error>
#include <utility>

#include "failure.h"
#include "process.h"

namespace soft {

bool Streams::awake() const { return awake_.load(std::memory_order_acquire); }

void Streams::wake() {
  check_not_forked();
  if (awake()) return;
  std::call_once(woken_, [this] {
    watch_forks();
    try {
      pool().start();
    } catch (const std::system_error& error) {
      throw Failure(Code::lost, "cannot wake device " + std::to_string(device_.index()) + ": " + error.what());
    }
    for (std::int64_t id = 0; id <= last; ++id) {
      const bool high = id > per_priority;
      streams_.push_back(
          std::make_unique<Stream>(device_, id, high ? Stream::Priority::high : Stream::Priority::normal));
    }
    awake_.store(true, std::memory_order_release);
  });
}

Stream& Streams::get(std::int64_t id) {
  if (id < 0 || id > last) {
    throw Failure(Code::invalid, "stream " + std::to_string(id) + " of device " + std::to_string(device_.index()) +
                                     ": expected an id from 0 to " + std::to_string(last));
  }
  wake();
  return *streams_[static_cast<std::size_t>(id)];
}

Stream& Streams::next(Stream::Priority priority) {
  const bool high = priority == Stream::Priority::high;
  const unsigned turn = next_[high ? 1 : 0].fetch_add(1, std::memory_order_relaxed) % per_priority;
  return get(1 + turn + (high ? per_priority : 0));
}

std::vector<Stream*> Streams::all() {
  std::vector<Stream*> all;
  if (awake()) {
    for (const auto& stream : streams_) all.push_back(stream.get());
  }
  return all;
}

void Streams::drain() {
  std::vector<std::shared_ptr<Mark>> marks;
  for (Stream* stream : all()) {
    if (auto mark = stream->fence()) marks.push_back(std::move(mark));
  }
  for (const auto& mark : marks) mark->wait();
}

}  // namespace soft
