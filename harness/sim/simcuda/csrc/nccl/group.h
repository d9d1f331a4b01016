// Groups of calls (NCCL's "Group Calls"), and the prologue and epilogue of each function of the interface.
#pragma once

#include <nccl.h>

#include <functional>
#include <memory>
#include <new>

#include "communicator.h"

#define NCCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace simcuda::nccl {

bool grouping();                         // whether the thread is in a group
void note_failure(ncclResult_t result);  // the end of the group returns the failure, too

// Runs the body and returns its result, ncclSuccess if it returns nothing, or the code of the Failure that it throws.
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
  } catch (...) {
    note_failure(ncclInternalError);
    return ncclInternalError;
  }
}

inline void check(bool condition, const std::string& text, ncclResult_t otherwise = ncclInvalidArgument) {
  if (!condition) throw Failure{otherwise, text};
}

// Launches the call now, or at the end of the group.
void enqueue(const std::shared_ptr<Communicator>& communicator, Call call, cudaStream_t stream);
// Makes a communicator ready. The communicators of a group are made ready concurrently. A non-blocking communicator is
// made ready by its own thread, and the function returns ncclInProgress.
ncclResult_t start(const std::shared_ptr<Communicator>& communicator, std::function<void()> job);

}  // namespace simcuda::nccl
