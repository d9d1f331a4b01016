// The clock of all records: the system's, or one that the program provides.
#pragma once

#include <cupti.h>

#include <cstdint>

namespace simcuda::cupti {

void set_clock(CUpti_TimestampCallbackFunc clock);  // null restores the system's clock
std::uint64_t now();                                // nanoseconds, by the current clock

}  // namespace simcuda::cupti
