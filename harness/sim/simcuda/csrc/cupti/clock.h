// The clock of all records: that of the system, or one of the program.
#pragma once

#include <cupti.h>

#include <cstdint>

namespace simcuda::cupti {

void set_clock(CUpti_TimestampCallbackFunc clock);  // null: that of the system
std::uint64_t now();                                // nanoseconds, by the clock of the system

}  // namespace simcuda::cupti
