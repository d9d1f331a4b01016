// Whether the process was forked after its devices had started threads.
#pragma once

namespace soft {

// From now on a fork leaves the child without what this process has: its threads, and locks in a known state.
void watch_forks();

// True in a child of a process whose devices were awake when it forked. No lock may be taken there.
bool forked();
void check_not_forked();  // throws Failure(invalid) that says what to do instead

}  // namespace soft
