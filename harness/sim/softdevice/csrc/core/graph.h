// Graphs: work that capturing streams record instead of running it, and that can then be replayed any number of times.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "capture.h"
#include "counter.h"
#include "pool_id.h"
#include "stream.h"

namespace soft {

class Graph {
 public:
  explicit Graph(bool keep_nodes);
  ~Graph();

  // Captures `stream` and the streams that join by waiting for its events. Throws Failure(capture) on the default
  // stream, on a stream that is already capturing, or if this graph has a capture that was not reset.
  void begin(Stream& stream, PoolId pool, CaptureMode mode);
  // Throws Failure(capture) if the capture was invalidated, or if a stream that joined was not joined back.
  void end();
  void instantiate();
  // Runs all nodes on `stream` in capture order, as one piece of work after earlier launches.
  void replay(Stream& stream);
  // Waits for running replays, then releases nodes and pool.
  void reset();
  PoolId pool() const;
  std::size_t size() const;  // number of nodes
  std::string dot() const;   // in Graphviz's DOT language

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace soft
