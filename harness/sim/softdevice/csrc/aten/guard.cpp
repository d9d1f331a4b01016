// Devices, streams and events for torch's generic code: torch.Stream, torch.Event, torch.accelerator.
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/headeronly/version.h>

#include <utility>

#include "../core/event.h"
#include "common.h"
#include "memory.h"

namespace soft::aten {
namespace {

c10::Device torch_device(int index) { return c10::Device(kSoft, static_cast<c10::DeviceIndex>(index)); }

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kSoft; }

  // Devices.
  c10::Device exchangeDevice(c10::Device device) const override {
    if (!device.has_index()) return getDevice();
    return translated([&] { return torch_device(soft::exchange_device(device.index())); });
  }
  c10::Device getDevice() const override { return torch_device(soft::current_device()); }
  void setDevice(c10::Device device) const override { exchangeDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() < soft::device_count()) soft::exchange_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(soft::device_count()); }
  // The device has all capabilities of the CPU.
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    translated([&] { soft::device(index).synchronize(); });
  }

  // Streams.
  c10::Stream getStream(c10::Device device) const override {
    return translated([&] { return to_torch(soft::current_stream(core_device(device).index())); });
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return translated([&] { return to_torch(core_device(device).stream(Device::default_stream)); });
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    return next(device, high ? Stream::Priority::high : Stream::Priority::normal);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return next(device, priority < 0 ? Stream::Priority::high : Stream::Priority::normal);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    Stream& now = from_torch(stream);
    return translated([&] {
      const c10::Stream before = to_torch(soft::current_stream(stream.device_index()));
      soft::set_current_stream(now);
      return before;
    });
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &from_torch(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    return translated([&] { return from_torch(stream).query(); });
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    translated([&] { from_torch(stream).synchronize(); });
  }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
  bool isStreamCapturing(const c10::Stream& stream) const override { return from_torch(stream).capture() != nullptr; }
#endif

  // `*handle` is null until the event is first recorded.
  void record(void** handle, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "an event of device ", static_cast<int>(index),
                " cannot be recorded on a stream of device ", static_cast<int>(stream.device_index()));
    if (*handle == nullptr) *handle = new Event(stream.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT);
    translated([&] { event(*handle).record(from_torch(stream)); });
  }
  void block(void* handle, const c10::Stream& stream) const override {
    if (handle != nullptr) translated([&] { event(handle).block(from_torch(stream)); });
  }
  bool queryEvent(void* handle) const override {
    return handle == nullptr || translated([&] { return event(handle).query(); });
  }
  void synchronizeEvent(void* handle) const override {
    if (handle != nullptr) translated([&] { event(handle).synchronize(); });
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    TORCH_CHECK(from != nullptr && to != nullptr, "both events must be recorded before the time between them is known");
    return translated([&] { return Event::elapsed(event(from), event(to)); });
  }
  void destroyEvent(void* handle, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(handle);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_on(data, from_torch(stream));
  }

 private:
  static Event& event(void* handle) { return *static_cast<Event*>(handle); }
  static c10::Stream next(c10::Device device, Stream::Priority priority) {
    return translated([&] { return to_torch(core_device(device).next_stream(priority)); });
  }
};

const c10::impl::DeviceGuardImplRegistrar guard_registered(kSoft, new Guard());

}  // namespace
}  // namespace soft::aten
