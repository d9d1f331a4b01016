// What concerns the process as a whole: whether it was forked under its streams' feet, and whether it is ending.
#pragma once

#include <chrono>

namespace soft {

// From now on a fork leaves the child without what this process has: its threads, and locks in a known state.
void watch_forks();

// True in a child of a process whose devices were awake when it forked. No lock may be taken there.
bool forked();
void check_not_forked();  // throws Failure(invalid) that says what to do instead

// Whether `abandon` was called: work that is still queued is dropped.
bool ending();
void begin_ending();

// Until the time is over, or the process ends.
void pause_for(std::chrono::nanoseconds duration);
void pause_for_ever();

}  // namespace soft
