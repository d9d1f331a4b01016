// Graphs: work that is kept instead of run while streams are captured, and run as often as one likes afterwards.
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
