#include "front.h"

#include <exception>
#include <utility>

#include "../core/faults.h"
#include "../core/graph.h"
#include "common.h"
#include "factories.h"
#include "generator.h"

namespace operators {

using soft::Code;
using soft::Failure;
using soft::aten::translated;

void Stream::launch(const char* name, soft::Work work, const Accesses& /*accesses*/) const {
  translated([&] {
    core_->launch(name, [work = std::move(work)] {
      try {
        work();
      } catch (const Failure&) {
        throw;
      } catch (const c10::Error& error) {
        throw Failure(Code::assertion, std::string("device-side assert: ") + error.what_without_backtrace());
      } catch (const std::exception& error) {
        throw Failure(Code::assertion, std::string("device-side assert: ") + error.what());
      }
    });
  });
}

void Stream::synchronize() const {
  translated([&] { core_->synchronize(); });
}

bool Stream::capturing() const { return core_->capture() != nullptr; }

void Stream::refuse(const std::string& why) const {
  translated([&] {
    if (const auto capture = core_->capture()) {
      capture->invalidate(why);
    }
    throw Failure(Code::capture, why);
  });
  TORCH_INTERNAL_ASSERT(false);
}

Stream current_stream(c10::DeviceIndex device) {
  return translated([&] { return Stream(soft::current_stream(device)); });
}

at::Tensor make_strided(c10::DeviceIndex device, at::IntArrayRef sizes, at::IntArrayRef strides,
                        c10::ScalarType dtype) {
  return soft::aten::make_strided(soft::aten::core_device(c10::Device(kDevice, device)), sizes, strides, dtype);
}

void resize_to(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  soft::aten::resize_to(tensor, sizes, strides);
}

std::function<at::Generator()> draw(const std::optional<at::Generator>& generator, const Stream& stream,
                                    std::int64_t /*elements*/) {
  return soft::aten::draw(generator, stream.core());
}

bool captures_stale_inputs(const Stream& stream) {
  return stream.capturing() && soft::strikes(soft::Fault::replay_uses_stale_input);
}

}  // namespace operators
