// torch.accelerator.Graph for the core's graphs. Older releases of torch lack the class.
#include <torch/headeronly/version.h>
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13

#include <ATen/core/GraphImplInterface.h>

#include <fstream>
#include <memory>
#include <string>

#include "../core/graph.h"
#include "common.h"

namespace soft::aten {
namespace {

CaptureMode converted(at::GraphCaptureMode mode) {
  switch (mode) {
    case at::GraphCaptureMode::ThreadLocal:
      return CaptureMode::thread_local_;
    case at::GraphCaptureMode::Relaxed:
      return CaptureMode::relaxed;
    case at::GraphCaptureMode::Default:
    case at::GraphCaptureMode::Global:
      return CaptureMode::global;
  }
  TORCH_CHECK(false, "unknown capture mode ", static_cast<int>(mode));
}

class TorchGraph final : public at::GraphImplInterface {
 public:
  explicit TorchGraph(const at::GraphImplArgs& args) : keep_(args.keep_graph), graph_(make()) {}

  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode mode) override {
    Stream& stream = soft::current_stream(soft::current_device());
    translated([&] { graph_->begin(stream, {pool.first, pool.second}, converted(mode)); });
    stream_ = &stream;
  }
  void capture_end() override {
    TORCH_CHECK(stream_ != nullptr, "capture_end() was called without a capture_begin()");
    TORCH_CHECK(&soft::current_stream(soft::current_device()) == stream_,
                "a capture must end on the stream on which it began");
    stream_ = nullptr;
    translated([&] { graph_->end(); });
    captured_ = true;
  }
  void instantiate() override {
    need_capture("instantiate");
    translated([&] { graph_->instantiate(); });
  }
  void replay() override {
    need_capture("replay");
    translated([&] { graph_->replay(soft::current_stream(soft::current_device())); });
  }
  void reset() override {
    translated([&] { graph_->reset(); });
    stream_ = nullptr;
    captured_ = false;
  }
  c10::MempoolId_t pool() const override {
    need_capture("pool");
    const PoolId own = graph_->pool();
    return {own.first, own.second};
  }
  void enable_debug_mode() override {
    TORCH_CHECK(stream_ == nullptr && !captured_, "debugging must be enabled before the capture");
    debug_ = true;
    graph_ = make();
  }
  void debug_dump(const std::string& path) override {
    TORCH_CHECK(debug_, "call enable_debug_mode() before the capture to be able to dump it");
    need_capture("debug_dump");
    std::ofstream file(path);
    file << translated([&] { return graph_->dot(); });
    file.close();
    TORCH_CHECK(file.good(), "the graph could not be written to ", path);
  }

 private:
  void need_capture(const char* call) const {
    TORCH_CHECK(captured_, call, "() was called without a preceding successful capture");
  }
  // A graph that will be dumped must keep its nodes, which it would otherwise move to its instance.
  std::unique_ptr<Graph> make() const { return std::make_unique<Graph>(keep_ || debug_); }

  const bool keep_;
  bool debug_ = false;
  std::unique_ptr<Graph> graph_;
  Stream* stream_ = nullptr;  // set during the capture
  bool captured_ = false;
};

// torch looks up the upper-case name of the device type. The backend is renamed after this library is loaded.
const at::RegistererGraphImplRegistry graph_registered("SOFT", at::GraphImplRegistry(),
                                                       at::RegistererGraphImplRegistry::DefaultCreator<TorchGraph>);

}  // namespace
}  // namespace soft::aten

#endif
