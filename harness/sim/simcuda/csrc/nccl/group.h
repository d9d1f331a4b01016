// Groups of calls (NCCL's "Group Calls"), and how each function of the interface begins and ends.
#pragma once

#include <nccl.h>

#include <functional>
#include <memory>
#include <new>

#include "communicator.h"

#define NCCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace simcuda::nccl {

bool grouping();                         // whether the thread is in a group
void note_failure(ncclResult_t result);  // of a call: the end of the group returns it, too

// The body throws Failure. What it returns, if anything, is returned.
template <typename Body>
ncclResult_t call(Body&& body) noexcept {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      body();
      return ncclSuccess;
    } else {
      return body();
    }
  } catch (const Failure& failure) {
    note_error(failure);
    note_failure(failure.code);
    return failure.code;
  } catch (const std::bad_alloc&) {
    note_failure(ncclSystemError);
    return ncclSystemError;
  }
}

inline void check(bool condition, const std::string& text, ncclResult_t otherwise = ncclInvalidArgument) {
  if (!condition) throw Failure{otherwise, text};
}

// Now, or at the end of the group.
void enqueue(const std::shared_ptr<Communicator>& communicator, Call call, cudaStream_t stream);
// Makes a communicator ready. Several of a group are made at once. One that does not block is made by a thread of its
// own, and ncclInProgress is returned.
ncclResult_t start(const std::shared_ptr<Communicator>& communicator, std::function<void()> job);

}  // namespace simcuda::nccl
