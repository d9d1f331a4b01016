// Captures: what streams, events and graphs share of one while it lasts.
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

  struct State;

 private:
  friend class Graph;
  friend class Mark;
  friend class Stream;
  std::shared_ptr<State> state_;
};

// Whether any stream of this process is being captured.
bool any_capture();

// Throws Failure(capture) where a call that waits for, or asks for, the device is not allowed because of a capture: of
// this thread in mode thread_local_, of any thread in mode global, never in mode relaxed; and invalidates that capture.
void forbid_while_capturing(const char* call);

// Keeps the pools of captures on the devices, which it knows by their indices.
class PoolKeeper {
 public:
  virtual ~PoolKeeper() = default;
  virtual void retain(int device, PoolId pool) = 0;
  virtual void release(int device, PoolId pool) = 0;
};

using Counters = std::vector<std::pair<std::shared_ptr<Counter>, std::uint64_t>>;  // and how many numbers are taken

// Locks are taken in this order: a graph's, an allocator's or the list of captures', a stream's, a capture's; nobody
// waits for work while holding one of the last three.
struct Capture::State {
  State(PoolId pool, CaptureMode mode, PoolKeeper& keeper)
      : pool(pool), mode(mode), thread(std::this_thread::get_id()), keeper(keeper) {}

  // Puts it on the list of those that last, and takes it off.
  static void list(const std::shared_ptr<State>& capture);
  void unlist();
  // From now on nothing joins and nothing is added. Returns its streams, the one that began it first.
  std::vector<Stream*> end();

  // The number of a new node that follows `tail`, if that is one. Throws Failure(capture) when the capture was
  // invalidated or has ended.
  int add(const char* name, work::Task work, int tail);
  // The number of the node that a stream stands at which stood at `tail` and waited for `node`; either may be none.
  int follow(int tail, int node);
  void join(Stream& stream);
  // Retains the pool of a device whose stream is to join, once. The caller holds no lock of a stream or an allocator.
  void admit(int device);
  void release_pools();

  void invalidate(const std::string& why);
  [[noreturn]] void refuse(const std::string& why);  // invalidates, and throws Failure(capture)

  const PoolId pool;
  const CaptureMode mode;
  const std::thread::id thread;
  PoolKeeper& keeper;

  mutable std::mutex mutex;  // of all that follows
  std::vector<Node> nodes;
  Counters counters;
  std::vector<Stream*> streams;  // the one that began it first
  std::vector<int> devices;      // that retain the pool
  std::string invalid;           // why; empty while it is valid
  bool ended = false;

 private:
  void check() const;
};

}  // namespace soft
