// What streams, events and graphs share of a capture while it lasts.
#pragma once

#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph.h"

namespace soft {

class Device;

// Whether any stream of this process is being captured.
bool any_capture();

using Counters = std::vector<std::pair<std::shared_ptr<Counter>, std::uint64_t>>;  // and how many numbers are taken

// What a counter stood at when a replay was launched.
using Places = std::unordered_map<const Counter*, std::uint64_t>;

// Sets for the calling thread what `replay_place` tells.
class PlacesInUse {
 public:
  explicit PlacesInUse(const Places& places);
  ~PlacesInUse();
  PlacesInUse(const PlacesInUse&) = delete;
  PlacesInUse& operator=(const PlacesInUse&) = delete;
};

// Locks are taken in this order: a graph's, an allocator's or the list of captures', a stream's, a capture's; nobody
// waits for work while holding one of the last three.
struct Capture::State {
  State(Stream& origin, PoolId pool, CaptureMode mode)
      : origin(origin), pool(pool), mode(mode), thread(std::this_thread::get_id()) {}

  // Has the origin begin it, and puts it on the list of those that last. Throws Failure(capture) when the origin is
  // captured already.
  static void begin(const std::shared_ptr<Capture>& capture);
  // Lets its streams go and takes it off the list; returns why the capture is no good, or nothing.
  std::string end();

  // The number of a new node that follows `tail`, if that is one. Throws Failure(capture) when the capture was
  // invalidated or has ended.
  int add(const char* name, Work work, int tail);
  // The number of the node that a stream stands at which stood at `tail` and waited for `node`; either may be none.
  int follow(int tail, int node);
  void join(Stream& stream);
  // Retains the pool of a device whose stream is to join, once. The caller holds no lock of a stream or an allocator.
  void admit(Device& device);
  void release_pools();

  void invalidate(const std::string& why);
  [[noreturn]] void refuse(const std::string& why);  // invalidates, and throws Failure(capture)
  [[noreturn]] static void refuse(const Mark& mark, const std::string& why);  // the same for the mark's capture

  Stream& origin;
  const PoolId pool;
  const CaptureMode mode;
  const std::thread::id thread;

  mutable std::mutex mutex;  // of all that follows
  std::vector<Node> nodes;
  Counters counters;
  std::vector<Stream*> streams;  // origin first
  std::vector<Device*> devices;  // that retain the pool
  std::string invalid;           // why; empty while it is valid
  bool ended = false;

 private:
  void check() const;
};

}  // namespace soft
