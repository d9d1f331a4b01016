// Helpers of the core's tests.
#pragma once

#include <cstddef>

#include "../device.h"
#include "testing.h"

namespace soft::testing {

using namespace ::testing;

inline Stream& new_stream(int index = 0) { return device(index).next_stream(Stream::Priority::normal); }

inline void close_behind(Stream& stream, const Gate& gate) { stream.launch("gate", gate.work()); }

// Returns the resident bytes of this process.
std::size_t resident();

// A sanitizer keeps freed memory, so memory use grows.
#ifdef SANITIZED
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

}  // namespace soft::testing
