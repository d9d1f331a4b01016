// A scope that discards torch's warnings of this thread.
#pragma once

#include <c10/util/Exception.h>

namespace simcuda {

class Silence {
 public:
  Silence() : guard_(&handler_) {}

 private:
  class Handler final : public c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  };

  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace simcuda
