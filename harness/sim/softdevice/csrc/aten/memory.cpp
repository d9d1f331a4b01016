#include "memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <utility>

namespace soft::aten {
namespace {

constexpr std::size_t most_devices = 64;

std::pair<std::size_t, std::size_t> totals(const Allocator& allocator) {
  const Statistics statistics = allocator.statistics();
  return {static_cast<std::size_t>(statistics.allocated_bytes[all].current),
          static_cast<std::size_t>(statistics.reserved_bytes[all].current)};
}

void report_to_profiler(const Block* block, std::int64_t bytes, Device& device) {
  if (!c10::memoryProfilingEnabled()) return;
  const auto [allocated, reserved] = totals(device.allocator());
  c10::reportMemoryUsageToProfiler(Allocator::data(block), bytes, allocated, reserved,
                                   c10::Device(kSoft, static_cast<c10::DeviceIndex>(device.index())));
}

// A deleter's only argument is the block, so each device has its own deleter.
template <std::size_t index>
void give_back(void* context) {
  auto* block = static_cast<Block*>(context);
  Device& owner = soft::device(index);
  report_to_profiler(block, -static_cast<std::int64_t>(Allocator::size(block)), owner);
  owner.allocator().free(block);
}

template <std::size_t... indices>
constexpr std::array<c10::DeleterFnPtr, sizeof...(indices)> all_deleters(std::index_sequence<indices...>) {
  return {&give_back<indices>...};
}
constexpr auto deleters = all_deleters(std::make_index_sequence<most_devices>());

bool is_ours(const c10::DataPtr& data) {
  const c10::Device device = data.device();
  return device.type() == kSoft && device.has_index() && data.get_context() != nullptr &&
         data.get_deleter() == deleters.at(static_cast<std::size_t>(device.index()));
}

c10::CachingAllocator::StatArray converted(const Stats3& from) {
  c10::CachingAllocator::StatArray to;
  for (std::size_t kind = 0; kind < to.size(); ++kind) {
    to[kind].current = from[kind].current;
    to[kind].peak = from[kind].peak;
    to[kind].allocated = from[kind].allocated;
    to[kind].freed = from[kind].freed;
  }
  return to;
}

class TorchAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    return soft::aten::allocate(bytes, core_device(c10::Device(kSoft)));
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  bool initialized() override {
    for (int index = 0; index < soft::device_count(); ++index) {
      if (soft::device(index).awake()) return true;
    }
    return false;
  }
  void emptyCache(c10::MempoolId_t pool) override {
    translated([&] {
      for (int index = 0; index < soft::device_count(); ++index) {
        if (Device& device = soft::device(index); device.awake()) device.allocator().empty(pool);
      }
    });
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { record_on(data, from_torch(stream)); }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const Statistics from = of(index).statistics();
    c10::CachingDeviceAllocator::DeviceStats to;
    to.allocation = converted(from.allocation);
    to.segment = converted(from.segment);
    to.active = converted(from.active);
    to.inactive_split = converted(from.inactive_split);
    to.allocated_bytes = converted(from.allocated_bytes);
    to.reserved_bytes = converted(from.reserved_bytes);
    to.active_bytes = converted(from.active_bytes);
    to.inactive_split_bytes = converted(from.inactive_split_bytes);
    to.requested_bytes = converted(from.requested_bytes);
    to.num_alloc_retries = from.num_alloc_retries;
    to.num_ooms = from.num_ooms;
    to.num_sync_all_streams = from.num_sync_all_streams;
    to.num_device_alloc = from.num_device_alloc;
    to.num_device_free = from.num_device_free;
    to.max_split_size = -1;  // no limit, in the notation of CUDA's allocator
    return to;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override { of(index).reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex index) override { of(index).reset_peak(); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex index) override { return of(index).memory(); }

 private:
  static soft::Allocator& of(c10::DeviceIndex index) { return core_device(c10::Device(kSoft, index)).allocator(); }
};

// Never destroyed: tensors with static lifetime are freed late.
TorchAllocator& torch_allocator() {
  static auto* allocator = new TorchAllocator();
  return *allocator;
}
REGISTER_ALLOCATOR(kSoft, &torch_allocator());

}  // namespace

c10::DataPtr allocate(std::size_t bytes, Device& device) {
  const c10::Device place(kSoft, static_cast<c10::DeviceIndex>(device.index()));
  if (bytes == 0) return c10::DataPtr(nullptr, place);
  Block* block = nullptr;
  try {
    block = translated([&] { return device.allocator().allocate(bytes, soft::current_stream(device.index())); });
  } catch (const c10::OutOfMemoryError&) {
    const auto [allocated, reserved] = totals(device.allocator());
    c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), allocated, reserved, place);
    throw;
  }
  report_to_profiler(block, static_cast<std::int64_t>(Allocator::size(block)), device);
  return c10::DataPtr(Allocator::data(block), block, deleters.at(static_cast<std::size_t>(device.index())), place);
}

void record_on(const c10::DataPtr& data, Stream& stream) {
  if (!is_ours(data)) return;
  Device& owner = core_device(data.device());
  TORCH_CHECK(stream.device().index() == owner.index(), "memory of device ", owner.index(),
              " cannot be recorded on a stream of device ", stream.device().index());
  translated([&] { owner.allocator().record(static_cast<Block*>(data.get_context()), stream); });
}

}  // namespace soft::aten
