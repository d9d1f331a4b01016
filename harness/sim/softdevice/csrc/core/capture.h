// Captures: the state that streams, events and graphs share during a capture.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "counter.h"
#include "pool_id.h"
#include "queue.h"

namespace soft {

class Graph;
class Mark;
class Stream;

enum class CaptureMode { global, thread_local_, relaxed };

struct Node {
  const char* name;
  work::Task work;
  std::vector<int> needs;  // dependencies, each with a smaller number than the node
};

// A running capture. Graph::begin creates it, and the capturing streams share it.
class Capture {
 public:
  PoolId pool() const;
  // Reserves `count` numbers of a counter for captured work. Their position is known only at a replay. Returns the
  // offset from `replay_place` of that counter.
  std::uint64_t take(const std::shared_ptr<Counter>& counter, std::uint64_t count);
  // Makes the capture fail, as an operation that it does not permit does.
  void invalidate(const std::string& why);

  struct State;

 private:
  friend class Graph;
  friend class Mark;
  friend class Stream;
  std::shared_ptr<State> state_;
};

// Returns whether any stream of this process is capturing.
bool any_capture();

// Throws Failure(capture) if a capture forbids a call that waits for the device or queries it, and invalidates that
// capture. Captures of any thread in mode global forbid it, captures of this thread in mode thread_local_, and none in
// mode relaxed.
void forbid_while_capturing(const char* call);

// Retains the pools of captures on the devices, given by index.
class PoolKeeper {
 public:
  virtual ~PoolKeeper() = default;
  virtual void retain(int device, PoolId pool) = 0;
  virtual void release(int device, PoolId pool) = 0;
};

using Counters = std::vector<std::pair<std::shared_ptr<Counter>, std::uint64_t>>;  // and the number of numbers taken

// Lock order: a graph's, then an allocator's or that of the list of captures, a stream's, a capture's. A thread that
// holds one of the last three must not wait for work.
struct Capture::State {
  State(PoolId pool, CaptureMode mode, PoolKeeper& keeper)
      : pool(pool), mode(mode), thread(std::this_thread::get_id()), keeper(keeper) {}

  // Add the capture to the list of running captures, and remove it.
  static void list(const std::shared_ptr<State>& capture);
  void unlist();
  // From now on, no stream can join and no node can be added. Returns the streams, beginning with the one that began
  // the capture.
  std::vector<Stream*> end();

  // Adds a node that follows `tail`, unless that is negative, and returns its number. Throws Failure(capture) if the
  // capture was invalidated or has ended.
  int add(const char* name, work::Task work, int tail);
  // Returns the new last node of a stream whose last node was `tail` and that waits for `node`; either may be negative.
  int follow(int tail, int node);
  void join(Stream& stream);
  // Retains the pool of a device once, before one of its streams joins. The caller holds no lock of a stream or an
  // allocator.
  void admit(int device);
  void release_pools();

  void invalidate(const std::string& why);
  [[noreturn]] void refuse(const std::string& why);  // invalidates, and throws Failure(capture)

  const PoolId pool;
  const CaptureMode mode;
  const std::thread::id thread;
  PoolKeeper& keeper;

  mutable std::mutex mutex;  // guards the fields below
  std::vector<Node> nodes;
  Counters counters;
  std::vector<Stream*> streams;  // the first one began the capture
  std::vector<int> devices;      // the devices on which the pool is retained
  std::string invalid;           // the reason; empty while the capture is valid
  bool ended = false;

 private:
  void check() const;
};

}  // namespace soft
