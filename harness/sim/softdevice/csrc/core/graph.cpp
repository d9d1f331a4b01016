#include "graph.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "capture.h"
#include "device.h"
#include "faults.h"
#include "process.h"

namespace soft {

namespace {

// The nodes that replays run. Queued replays share them, so they never change.
struct Executable {
  std::vector<Node> nodes;
  Counters counters;
};

std::size_t count_work(const std::vector<Node>& nodes) {
  return static_cast<std::size_t>(
      std::count_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.work != nullptr; }));
}

// Runs the nodes in order, except the one with index `skipped` among the nodes with work.
void run(const Executable& executable, const Places& places, std::size_t skipped) {
  const PlacesInUse use(places);
  std::size_t number = 0;
  for (const Node& node : executable.nodes) {
    if (node.work && number++ != skipped) node.work();
  }
}

// Returns, by index, whether a node is `last` or a dependency of it.
std::vector<bool> before(const std::vector<Node>& nodes, int last) {
  std::vector<bool> reached(nodes.size(), false);
  if (last >= 0) reached[static_cast<std::size_t>(last)] = true;
  for (std::size_t index = nodes.size(); index-- > 0;) {
    if (!reached[index]) continue;
    for (const int need : nodes[index].needs) reached[static_cast<std::size_t>(need)] = true;
  }
  return reached;
}

class Allocators final : public PoolKeeper {
 public:
  void retain(int index, PoolId pool) override { device(index).allocator().retain(pool); }
  void release(int index, PoolId pool) override { device(index).allocator().release(pool); }
};

// Never destroyed: graphs may be destroyed until the very end of the process.
PoolKeeper& allocators() {
  static auto* const allocators = new Allocators;
  return *allocators;
}

// Ends the capture of its streams. Returns the reason if the capture is invalid, otherwise an empty string.
std::string end_capture(Capture::State& capture) {
  const std::vector<Stream*> streams = capture.end();
  std::vector<int> tails;
  for (Stream* stream : streams) tails.push_back(stream->leave());
  capture.unlist();
  const std::lock_guard lock(capture.mutex);
  if (!capture.invalid.empty()) return capture.invalid;
  const std::vector<bool> reached = before(capture.nodes, tails.front());
  for (std::size_t index = 1; index < streams.size(); ++index) {
    if (tails[index] >= 0 && !reached[static_cast<std::size_t>(tails[index])]) {
      return "stream " + std::to_string(streams[index]->id()) + " of device " +
             std::to_string(streams[index]->device().index()) +
             " joined the capture, and the stream that began it does not wait for its last work";
    }
  }
  return {};
}

std::string escaped(const char* name) {
  std::string text;
  for (const char* each = name; *each != '\0'; ++each) {
    if (*each == '"' || *each == '\\') text += '\\';
    text += *each;
  }
  return text;
}

}  // namespace

struct Graph::State {
  explicit State(bool keep_nodes) : keep_nodes(keep_nodes) {}

  const bool keep_nodes;
  mutable std::mutex mutex;
  std::shared_ptr<Capture> capture;  // set by `begin`; kept for its pools until `reset`
  bool ended = false;
  Executable captured;  // copied by `instantiate`; moved instead without `keep_nodes`
  std::shared_ptr<const Executable> executable;
  std::vector<std::shared_ptr<Mark>> replays;  // marks after replays that may still be running

  // The caller holds the mutex.
  const std::vector<Node>& nodes() const { return executable && !keep_nodes ? executable->nodes : captured.nodes; }
  void instantiate();
};

void Graph::State::instantiate() {
  if (!ended) throw Failure(Code::capture, "cannot instantiate a graph before its capture has ended");
  if (keep_nodes) {
    executable = std::make_shared<const Executable>(captured);
    return;
  }
  if (executable) {
    throw Failure(Code::capture, "cannot instantiate a graph again that does not keep its nodes");
  }
  executable = std::make_shared<const Executable>(std::move(captured));
  captured = {};
}

Graph::Graph(bool keep_nodes) : state_(std::make_unique<State>(keep_nodes)) {}

Graph::~Graph() { reset(); }

void Graph::begin(Stream& stream, PoolId pool, CaptureMode mode) {
  stream.device().check();
  const std::lock_guard lock(state_->mutex);
  if (state_->capture) throw Failure(Code::capture, "cannot capture into a graph that has a capture and was not reset");
  if (stream.id() == Device::default_stream) {
    throw Failure(Code::capture, "cannot capture the default stream: use another");
  }
  auto capture = std::make_shared<Capture>();
  const PoolId own = pool == PoolId{0, 0} ? new_pool_id() : pool;
  capture->state_ = std::make_shared<Capture::State>(own, mode, allocators());
  capture->state_->admit(stream.device().index());
  try {
    stream.enter(capture);
  } catch (...) {
    capture->state_->release_pools();
    throw;
  }
  Capture::State::list(capture->state_);
  state_->capture = std::move(capture);
}

void Graph::end() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->capture || state_->ended) throw Failure(Code::capture, "cannot end a capture that was not begun");
  Capture::State& capture = *state_->capture->state_;
  if (capture.mode != CaptureMode::relaxed && capture.thread != std::this_thread::get_id()) {
    throw Failure(Code::capture, "cannot end a capture in another thread than the one that began it");
  }
  const std::string trouble = end_capture(capture);
  if (!trouble.empty()) {
    capture.release_pools();
    state_->capture.reset();
    throw Failure(Code::capture, "the capture failed: " + trouble);
  }
  state_->captured = {std::move(capture.nodes), std::move(capture.counters)};
  state_->ended = true;
  if (!state_->keep_nodes) state_->instantiate();
}

void Graph::instantiate() {
  const std::lock_guard lock(state_->mutex);
  state_->instantiate();
}

void Graph::replay(Stream& stream) {
  stream.device().check();
  const std::lock_guard lock(state_->mutex);
  if (!state_->ended) throw Failure(Code::capture, "cannot replay a graph before its capture has ended");
  if (const auto other = stream.capture()) {
    const std::string why = "a graph's replay cannot be captured";
    other->invalidate(why);
    throw Failure(Code::capture, why);
  }
  if (!state_->executable) state_->instantiate();
  const auto& executable = state_->executable;
  Places places;
  for (const auto& [counter, count] : executable->counters) places.emplace(counter.get(), counter->take(count));
  std::size_t skipped = static_cast<std::size_t>(-1);
  const std::size_t count = count_work(executable->nodes);
  if (count != 0 && strikes(Fault::replay_skips_node)) {
    skipped = (times_struck(Fault::replay_skips_node) - 1) % count;  // each node in turn
  }
  stream.launch("replay", [executable, places = std::move(places), skipped] { run(*executable, places, skipped); });
  auto& replays = state_->replays;
  replays.erase(std::remove_if(replays.begin(), replays.end(), [](const auto& mark) { return mark->done(); }),
                replays.end());
  if (auto mark = stream.fence()) replays.push_back(std::move(mark));
}

void Graph::reset() {
  if (forked()) return;  // the replays and the pool belong to the parent
  std::shared_ptr<Capture> capture;
  std::vector<std::shared_ptr<Mark>> replays;
  Executable captured;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->capture && !state_->ended) end_capture(*state_->capture->state_);
    capture.swap(state_->capture);
    replays.swap(state_->replays);
    std::swap(captured, state_->captured);
    state_->executable.reset();
    state_->ended = false;
  }
  for (const auto& mark : replays) mark->wait();
  if (capture) capture->state_->release_pools();
}

PoolId Graph::pool() const {
  const std::lock_guard lock(state_->mutex);
  return state_->capture ? state_->capture->pool() : PoolId{0, 0};
}

std::size_t Graph::size() const {
  const std::lock_guard lock(state_->mutex);
  return count_work(state_->nodes());
}

std::string Graph::dot() const {
  const std::lock_guard lock(state_->mutex);
  const std::vector<Node>& nodes = state_->nodes();
  std::ostringstream text;
  text << "digraph soft {\n";
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    const Node& node = nodes[index];
    text << "  n" << index << " [label=\"" << escaped(node.name) << '"' << (node.work ? "" : ", shape=point") << "];\n";
    for (const int need : node.needs) text << "  n" << need << " -> n" << index << ";\n";
  }
  text << "}\n";
  return text.str();
}

}  // namespace soft
