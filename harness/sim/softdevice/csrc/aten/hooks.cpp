// The accelerator hooks of torch.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "../core/pinned.h"
#include "common.h"
#include "generator.h"
#include "memory.h"

namespace soft::aten {
namespace {

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return soft::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return index >= 0 && index < soft::device_count() && soft::device(index).awake();
  }

  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(soft::device_count()); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(soft::current_device()); }
  void setCurrentDevice(c10::DeviceIndex index) const override { exchangeDevice(index); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return static_cast<c10::DeviceIndex>(translated([&] { return soft::exchange_device(index); }));
  }
  // A negative index means no change. A guard that has changed nothing restores it.
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? getCurrentDevice() : exchangeDevice(index);
  }

  bool isPinnedPtr(const void* address) const override { return PinnedAllocator::get().owns(address); }
  at::Allocator* getPinnedMemoryAllocator() const override { return at::getHostAllocator(kSoft); }
  at::Device getDeviceFromPtr(void* address) const override {
    for (int index = 0; index < soft::device_count(); ++index) {
      if (soft::device(index).allocator().owns(address)) {
        return c10::Device(kSoft, static_cast<c10::DeviceIndex>(index));
      }
    }
    TORCH_CHECK(false, "the address ", address, " is in no device's memory");
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<SoftGenerator>(
        static_cast<c10::DeviceIndex>(core_device(c10::Device(kSoft, index)).index()));
  }

  // The old memory is freed immediately: its own stream reuses it in stream order, after the copy.
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "a storage that is not resizable cannot be resized");
    Device& device = core_device(impl->device());
    c10::DataPtr data = allocate(bytes, device);
    if (const std::size_t kept = std::min(bytes, impl->nbytes()); kept > 0) {
      void* to = data.get();
      const void* from = impl->data();
      translated([&] {
        soft::current_stream(device.index()).launch("resize", [to, from, kept] { std::memcpy(to, from, kept); });
      });
    }
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(bytes);
  }
};

const bool hooks_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace
}  // namespace soft::aten
