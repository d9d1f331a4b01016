// Graphs: work that is kept instead of run while streams are captured, and run as often as one likes afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "allocator.h"
#include "stream.h"

namespace soft {

// A generator's place in its sequence. Random work takes numbers from it at its launch; captured, at each replay.
class Counter {
 public:
  std::uint64_t take(std::uint64_t count);  // the place before
  std::uint64_t place() const;
  void set(std::uint64_t place);

 private:
  std::atomic<std::uint64_t> place_{0};
};

enum class CaptureMode { global, thread_local_, relaxed };

struct Node {
  const char* name;
  Work work;
  std::vector<int> needs;  // nodes that come before it, each smaller than its own number
};

// What is being captured. Made by Graph::begin, shared with the streams that are in it.
class Capture {
 public:
  PoolId pool() const;
  // Announces that captured work takes `count` numbers of a counter; the place is known at replay only. Returns the
  // offset behind `replay_place` of that counter.
  std::uint64_t take(const std::shared_ptr<Counter>& counter, std::uint64_t count);
  // Makes the capture end in an error, as an operation that is not allowed in it does.
  void invalidate(const std::string& why);

  struct State;  // in capture.h

 private:
  friend class Graph;
  friend class Stream;
  std::shared_ptr<State> state_;
};

// In a stream's thread, within a replay: where the counter stood when this replay was launched. Otherwise throws
// std::logic_error.
std::uint64_t replay_place(const Counter* counter);

// Throws Failure(capture) where a call that waits for, or asks for, the device is not allowed because of a capture: of
// this thread in mode thread_local_, of any thread in mode global, never in mode relaxed; and invalidates that capture.
void forbid_while_capturing(const char* call);

class Graph {
 public:
  explicit Graph(bool keep_nodes);
  ~Graph();

  // Captures `stream` and the streams that join by waiting for its events. Throws Failure(capture) on the default
  // stream, on a stream that is captured already, or when this graph holds a capture that was not reset.
  void begin(Stream& stream, PoolId pool, CaptureMode mode);
  // Throws Failure(capture) when the capture was invalidated or a stream that joined did not come back.
  void end();
  void instantiate();
  // Runs all nodes on `stream`, in the order of their capture, as one piece of work behind what was launched there.
  void replay(Stream& stream);
  // Waits for running replays, lets go of nodes and pool.
  void reset();
  PoolId pool() const;
  std::size_t size() const;  // nodes
  std::string dot() const;   // in Graphviz's language

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace soft
