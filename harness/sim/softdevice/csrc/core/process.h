// Detects a fork after the devices have started threads.
#pragma once

namespace soft {

// From now on, a fork marks the child as unusable, since it lacks the threads and locks may be in any state.
void watch_forks();

// Returns true in a child of a process whose devices were awake at the fork. The child must not take any lock.
bool forked();
void check_not_forked();  // throws Failure(invalid), whose message says what to do instead

}  // namespace soft
