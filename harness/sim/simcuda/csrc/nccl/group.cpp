#include "group.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "cuda.h"
#include "progress.h"

namespace simcuda::nccl {

namespace {

struct Asked {
  std::shared_ptr<Communicator> communicator;
  std::vector<Call> calls;
  std::vector<cudaStream_t> streams;
};

struct Group {
  int depth = 0;
  ncclResult_t failure = ncclSuccess;
  std::vector<Asked> asked;
  std::vector<std::function<void()>> jobs;
  bool in_progress = false;
};

thread_local Group group;

// The most collectives in one launch. A launch must not fill the ranks' shared memory, since ranks progress
// independently.
constexpr std::size_t most_at_once = most_collectives / 4;

void launch_parts(Communicator& communicator, std::vector<Call> calls, cudaStream_t stream) {
  std::vector<Call> part;
  std::size_t collectives = 0;
  std::vector<std::size_t> messages(2 * most_ranks);
  for (Call& call : calls) {
    if (is_message(call.kind)) {
      auto& count = messages[static_cast<std::size_t>(2 * call.root + (call.kind == Kind::send))];
      check(++count <= most_messages, "a group has more messages between two ranks than the simulation can hold",
            ncclInternalError);
    } else {
      ++collectives;
    }
    part.push_back(std::move(call));
    if (collectives < most_at_once) continue;
    communicator.launch(std::exchange(part, {}), stream);
    collectives = 0;
  }
  if (!part.empty()) communicator.launch(std::move(part), stream);
}

// A fused launch waits for all its streams, and they wait for it.
void launch(Asked asked) {
  Communicator& communicator = *asked.communicator;
  const OnDevice current(communicator.device());
  const cudaStream_t first = asked.streams.front();
  for (std::size_t i = 1; i < asked.streams.size(); ++i) {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    const cudaError_t recorded = cudaEventRecord(event, asked.streams[i]);
    const cudaError_t waited = recorded == cudaSuccess ? cudaStreamWaitEvent(first, event, 0) : recorded;
    cudaEventDestroy(event);
    check_cuda(waited);
  }
  launch_parts(communicator, std::move(asked.calls), first);
  for (std::size_t i = 1; i < asked.streams.size(); ++i) communicator.order(asked.streams[i]);
}

// Runs the jobs concurrently, since each may wait for another. Throws the first failure.
void run(std::vector<std::function<void()>> jobs) {
  if (jobs.size() == 1) return jobs.front()();
  std::vector<std::exception_ptr> failures(jobs.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    threads.push_back(quiet_thread([&, i] {
      try {
        jobs[i]();
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }));
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

ncclResult_t end(bool simulated) {
  check(group.depth > 0, "ncclGroupEnd: not in a group call", ncclInvalidUsage);
  if (--group.depth > 0) return ncclSuccess;
  Group ended = std::exchange(group, {});
  if (ended.failure != ncclSuccess) return ended.failure;
  if (simulated) return ncclSuccess;
  if (!ended.jobs.empty()) run(std::move(ended.jobs));
  for (Asked& asked : ended.asked) launch(std::move(asked));
  return ended.in_progress ? ncclInProgress : ncclSuccess;
}

}  // namespace

bool grouping() { return group.depth > 0; }
void note_failure(ncclResult_t result) {
  if (grouping() && group.failure == ncclSuccess) group.failure = result;
}

void enqueue(const std::shared_ptr<Communicator>& communicator, Call call, cudaStream_t stream) {
  if (!grouping()) {
    communicator->launch({std::move(call)}, stream);
    return;
  }
  auto found = std::find_if(group.asked.begin(), group.asked.end(),
                            [&](const Asked& asked) { return asked.communicator == communicator; });
  if (found == group.asked.end()) found = group.asked.insert(found, {communicator, {}, {}});
  found->calls.push_back(std::move(call));
  if (std::find(found->streams.begin(), found->streams.end(), stream) == found->streams.end()) {
    found->streams.push_back(stream);
  }
}

ncclResult_t start(const std::shared_ptr<Communicator>& communicator, std::function<void()> job) {
  if (!communicator->settings().blocking) {
    quiet_thread([communicator, job = std::move(job)] {
      try {
        job();
      } catch (const Failure&) {  // the communicator has recorded the failure
      }
    }).detach();
    group.in_progress = grouping();
    return ncclInProgress;
  }
  if (grouping()) {
    group.jobs.push_back(std::move(job));
    return ncclSuccess;
  }
  job();
  return ncclSuccess;
}

}  // namespace simcuda::nccl

using namespace simcuda::nccl;

NCCL_EXPORT ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

NCCL_EXPORT ncclResult_t ncclGroupEnd() {
  return call([] { return end(false); });
}

NCCL_EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* information) {
  return call([&] {
    if (information != nullptr) information->estimatedTime = 0;
    return end(true);
  });
}
