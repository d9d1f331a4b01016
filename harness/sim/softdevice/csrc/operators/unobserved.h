// Work of the simulation that a GPU does not do on the host, such as copies of numbers: profilers do not see it.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

namespace operators {

// While it exists, this thread's operators are not recorded, and its allocations are not reported. It must not exist
// while an operator of the program is called.
class Unobserved {
 public:
  Unobserved() : memory_(c10::DebugInfoKind::PROFILER_STATE, nobody()) {}

 private:
  class Nobody final : public c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*pointer*/, int64_t /*size*/, size_t /*allocated*/, size_t /*reserved*/,
                           c10::Device /*device*/) override {}
    bool memoryProfilingEnabled() const override { return false; }
  };
  // Returns null without a profiler, which changes nothing.
  static std::shared_ptr<c10::DebugInfoBase> nobody() {
    static const auto* one = new std::shared_ptr<c10::DebugInfoBase>(std::make_shared<Nobody>());
    return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) == nullptr ? nullptr : *one;
  }

  const at::DisableRecordFunctionGuard operators_;
  const c10::DebugInfoGuard memory_;
};

}  // namespace operators
