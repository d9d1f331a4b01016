// Pinned memory for torch's generic code: Tensor.pin_memory, is_pinned, and non-blocking copies.
#include "../core/pinned.h"

#include <ATen/core/CachingHostAllocator.h>

#include "common.h"

namespace soft::aten {
namespace {

void give_back(void* address) { PinnedAllocator::get().free(address); }

c10::CachingAllocator::Stat to_torch(const Stat& from) {
  c10::CachingAllocator::Stat to;
  to.current = from.current;
  to.peak = from.peak;
  to.allocated = from.allocated;
  to.freed = from.freed;
  return to;
}

class TorchPinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* address = translated([&] { return PinnedAllocator::get().allocate(bytes); });
    return c10::DataPtr(address, address, &give_back, c10::Device(c10::DeviceType::CPU));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  bool record_event(void* address, void*, c10::Stream stream) override {
    return translated([&] { return PinnedAllocator::get().record(address, from_torch(stream)); });
  }
  void empty_cache() override {
    translated([] { PinnedAllocator::get().empty(); });
  }
  at::HostStats get_stats() override {
    const PinnedStatistics from = PinnedAllocator::get().statistics();
    at::HostStats to;
    to.active_requests = to_torch(from.active_requests);
    to.active_bytes = to_torch(from.active_bytes);
    to.allocations = to_torch(from.segment);
    to.allocated_bytes = to_torch(from.reserved_bytes);
    to.num_host_alloc = from.num_host_alloc;
    to.num_host_free = from.num_host_free;
    return to;
  }
  void reset_accumulated_stats() override { PinnedAllocator::get().reset_accumulated(); }
  void reset_peak_stats() override { PinnedAllocator::get().reset_peak(); }
};

// Never destroyed: tensors with static lifetime are freed late.
REGISTER_HOST_ALLOCATOR(kSoft, new TorchPinnedAllocator());

}  // namespace
}  // namespace soft::aten
