// The functions that torch.soft needs and torch lacks. They exchange only plain values, and release the GIL while they
// wait.
#include <ATen/EmptyTensor.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../core/config.h"
#include "../core/faults.h"
#include "../core/pinned.h"
#include "../core/process.h"
#include "common.h"
#include "generator.h"
#include "launch.h"

namespace py = pybind11;

namespace soft::aten {
namespace {

// Runs without the GIL, and converts the core's exceptions to torch's.
template <typename Call>
auto released(Call&& call) -> decltype(call()) {
  const py::gil_scoped_release no_gil;
  return translated(std::forward<Call>(call));
}

py::dict to_python(const Stat& stat) {
  py::dict result;
  result["current"] = stat.current;
  result["peak"] = stat.peak;
  result["allocated"] = stat.allocated;
  result["freed"] = stat.freed;
  return result;
}

py::dict to_python(const BlockView& block) {
  py::dict result;
  result["address"] = block.address;
  result["size"] = block.size;
  result["requested_size"] = block.requested;
  result["state"] = block.allocated ? "active_allocated" : block.active ? "active_pending_free" : "inactive";
  return result;
}

// The names are those of torch.cuda.memory_snapshot.
py::dict to_python(const SegmentView& segment, int device) {
  std::size_t allocated = 0, active = 0, requested = 0;
  py::list blocks;
  for (const BlockView& block : segment.blocks) {
    if (block.allocated) allocated += block.size;
    if (block.active) active += block.size;
    if (block.active) requested += block.requested;
    blocks.append(to_python(block));
  }
  py::dict result;
  result["device"] = device;
  result["address"] = segment.address;
  result["total_size"] = segment.size;
  result["allocated_size"] = allocated;
  result["active_size"] = active;
  result["requested_size"] = requested;
  result["stream"] = segment.stream;
  result["segment_type"] = segment.large ? "large" : "small";
  result["segment_pool_id"] = py::make_tuple(segment.pool.first, segment.pool.second);
  result["blocks"] = blocks;
  return result;
}

py::list memory_snapshot() {
  py::list result;
  for (int index = 0; index < soft::device_count(); ++index) {
    const auto segments = released([&] { return soft::device(index).allocator().snapshot(); });
    for (const SegmentView& segment : segments) result.append(to_python(segment, index));
  }
  return result;
}

py::dict host_memory_stats() {
  const PinnedStatistics from = released([] { return PinnedAllocator::get().statistics(); });
  py::dict result;
  result["allocations"] = to_python(from.segment);
  result["allocated_bytes"] = to_python(from.reserved_bytes);
  result["active_requests"] = to_python(from.active_requests);
  result["active_bytes"] = to_python(from.active_bytes);
  result["num_host_alloc"] = from.num_host_alloc;
  result["num_host_free"] = from.num_host_free;
  return result;
}

std::map<std::string, std::uint64_t> faults_struck() {
  std::map<std::string, std::uint64_t> result;
  for (int number = 0; number < static_cast<int>(Fault::count); ++number) {
    const auto fault = static_cast<Fault>(number);
    if (const std::uint64_t times = soft::times_struck(fault); times > 0) result[fault_name(fault)] = times;
  }
  return result;
}

std::optional<std::pair<int, std::string>> failure(int index) {
  const std::optional<Failure> found = released([&] { return soft::device(index).failure(); });
  if (!found.has_value()) return std::nullopt;
  return std::make_pair(static_cast<int>(found->code), std::string(found->what()));
}

// A device that was never used has nothing to wait for.
void synchronize(int index) {
  released([&] {
    if (Device& device = soft::device(index); device.awake()) device.synchronize();
  });
}

void sleep(int index, std::int64_t stream, double milliseconds) {
  TORCH_CHECK_VALUE(milliseconds >= 0 && milliseconds < 1e12, "expected a number of milliseconds of 0 or more, got ",
                    milliseconds);
  const auto duration = std::chrono::nanoseconds(static_cast<std::int64_t>(milliseconds * 1e6));
  released(
      [&] { soft::device(index).stream(stream).launch("sleep", [duration] { soft::sleep_in_stream(duration); }); });
}

at::Generator generator_of(int index) { return default_generator(static_cast<c10::DeviceIndex>(index)); }

py::bytes generator_state(int index) {
  const auto state = released([&] { return generator_of(index).get_state(); });
  return py::bytes(static_cast<const char*>(state.data_ptr()), state.nbytes());
}

void set_generator_state(int index, const py::bytes& state) {
  const std::string bytes = state;
  released([&] {
    const at::Tensor copy = at::detail::empty_cpu({static_cast<std::int64_t>(bytes.size())}, at::kByte);
    std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
    generator_of(index).set_state(copy);
  });
}

}  // namespace

PYBIND11_MODULE(_softdevice, module) {
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const c10::Error&) {
      torch::translate_exception_to_python(error);
    }
  });
  soft::pool().at_start(&operators::prepare_thread);
  module.def("device_type", [] { return static_cast<int>(kSoft); });  // the number in torch's streams
  module.def("device_count", &soft::device_count);
  module.def("uuid",
             [](int index) { return core_device(c10::Device(kSoft, static_cast<c10::DeviceIndex>(index))).uuid(); });
  module.def("memory", [] { return Config::get().memory; });
  module.def("is_awake", [](int index) { return released([&] { return soft::device(index).awake(); }); });
  module.def("current_stream_id", [](int index) { return released([&] { return soft::current_stream(index).id(); }); });
  module.def("is_capturing", [](int index) {
    return released([&] { return soft::device(index).awake() && soft::current_stream(index).capture() != nullptr; });
  });
  module.def("synchronize", &synchronize);
  module.def("failure", &failure);
  module.def("sleep", &sleep);
  module.def("memory_snapshot", &memory_snapshot);
  module.def("host_memory_stats", &host_memory_stats);
  module.def("reset_peak_host_memory_stats", [] { released([] { PinnedAllocator::get().reset_peak(); }); });
  module.def("reset_accumulated_host_memory_stats",
             [] { released([] { PinnedAllocator::get().reset_accumulated(); }); });
  module.def("inject", [](const std::string& text) { released([&] { soft::inject(parse_injections(text)); }); });
  module.def("faults_struck", &faults_struck);
  module.def("thread_count", [] { return soft::pool().started(); });
  module.def("forked", &soft::forked);
  module.def("abandon", [] { released([] { soft::abandon(); }); });
  module.def("manual_seed",
             [](int index, std::uint64_t seed) { released([&] { generator_of(index).set_current_seed(seed); }); });
  module.def("seed", [](int index) { return released([&] { return generator_of(index).seed(); }); });
  module.def("initial_seed", [](int index) { return released([&] { return generator_of(index).current_seed(); }); });
  module.def("get_rng_state", &generator_state);
  module.def("set_rng_state", &set_generator_state);
}

}  // namespace soft::aten
