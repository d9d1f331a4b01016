#include "common.h"

#include <stdexcept>

#include "../core/failure.h"

namespace soft::aten {

void rethrow_as_torch() {
  try {
    throw;
  } catch (const Failure& failure) {
    if (failure.code == Code::invalid) C10_THROW_ERROR(Error, failure.what());
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, static_cast<int32_t>(failure.code), failure.what());
  } catch (const OutOfMemory& error) {
    C10_THROW_ERROR(OutOfMemoryError, error.what());
  } catch (const std::invalid_argument& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
  throw;  // any other exception is not an error of the device
}

Stream& from_torch(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == kSoft, "expected a stream of a ", kSoft, " device, got one of ", stream.device());
  return translated([&]() -> Stream& { return device(stream.device_index()).stream(stream.id()); });
}

Device& core_device(c10::Device device) {
  TORCH_CHECK(device.type() == kSoft, "expected a ", kSoft, " device, got ", device);
  return translated(
      [&]() -> Device& { return soft::device(device.has_index() ? device.index() : soft::current_device()); });
}

}  // namespace soft::aten
