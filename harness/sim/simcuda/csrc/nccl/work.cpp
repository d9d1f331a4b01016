// A communicator's work when its stream reaches a launch, and when the other ranks have arrived.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "../include/simcuda.h"
#include "../include/simcuda_races.h"
#include "../include/simcuda_shared.h"
#include "communicator.h"
#include "cuda.h"
#include "faults.h"
#include "progress.h"

namespace simcuda::nccl {

// A launch that is queued or running. Launches of graphs are not counted, since graphs may run at any time.
struct Pending {
  explicit Pending(std::shared_ptr<Communicator> whose) : communicator(std::move(whose)) {
    const std::lock_guard lock(communicator->mutex_);
    ++communicator->pending_;
  }
  ~Pending() {
    const std::lock_guard lock(communicator->mutex_);
    --communicator->pending_;
    communicator->changed_.notify_all();
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  const std::shared_ptr<Communicator> communicator;
};

namespace {

// The name in profiles, in the form of NCCL's kernel names.
const char* kernel_name(Kind kind) {
  constexpr const char* names[] = {
      "ncclDevKernel_AllReduce(simulated)",     "ncclDevKernel_Reduce(simulated)",
      "ncclDevKernel_Broadcast(simulated)",     "ncclDevKernel_AllGather(simulated)",
      "ncclDevKernel_ReduceScatter(simulated)", "ncclDevKernel_AlltoAll(simulated)",
      "ncclDevKernel_Gather(simulated)",        "ncclDevKernel_Scatter(simulated)",
      "ncclDevKernel_SendRecv(simulated)",      "ncclDevKernel_SendRecv(simulated)",
  };
  return names[static_cast<int>(kind)];
}

bool reduces(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter; }
bool has_root(Kind kind) {
  return kind == Kind::reduce || kind == Kind::broadcast || kind == Kind::gather || kind == Kind::scatter;
}

class WaitingRun final : public Waiting {
 public:
  WaitingRun(std::shared_ptr<Launch> launch, std::shared_ptr<Run> run)
      : launch_(std::move(launch)), run_(std::move(run)) {}

  bool arrived() override {
    Communicator& communicator = *launch_->communicator;
    communicator.reclaim();
    return communicator.arrived(*launch_, *run_);
  }
  void go_on() override { run_->finish(); }

 private:
  const std::shared_ptr<Launch> launch_;
  const std::shared_ptr<Run> run_;
};

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* names[] = {"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter",
                                   "AlltoAll",  "Gather", "Scatter",   "Send",      "Recv"};
  return names[static_cast<int>(kind)];
}

void Communicator::launch(std::vector<Call> calls, cudaStream_t stream) {
  const auto made = std::make_shared<Launch>();
  const char* const name = kernel_name(calls.front().kind);
  for (Call& call : calls) {
    if (const std::size_t bytes = input_elements(call) * size_of(call.type);
        bytes > 0 && strikes(Fault::collective_early)) {
      call.early.resize(bytes);
      simcudaReadMemory(call.early.data(), call.from, bytes);
    }
  }
  made->communicator = shared_from_this();
  made->calls = std::move(calls);
  const OnDevice current(device_);
  const unsigned long long capture = capture_of(stream);
  order(stream);
  declare(made->calls);
  auto pending = capture != 0 ? nullptr : std::make_shared<Pending>(shared_from_this());
  std::function<void(std::function<void()>)> begin = [made](std::function<void()> finish) {
    made->communicator->begin(made, std::move(finish));
  };
  std::function<void()> work = [made, pending = std::move(pending)] { made->communicator->work(*made); };
  check_cuda(static_cast<cudaError_t>(simcudaLaunchShared(stream, name, &begin, &work)));
  Last& last = capture != 0 ? captured_ : eager_;
  if (last.event == nullptr) check_cuda(cudaEventCreateWithFlags(&last.event, cudaEventDisableTiming));
  check_cuda(cudaEventRecord(last.event, stream));
  last.stream = stream;
  last.capture = capture;
  last.any = true;
}

// NCCL does the same with an internal stream per communicator (src/misc/strongstream.cc).
void Communicator::order(cudaStream_t stream) {
  const unsigned long long capture = capture_of(stream);
  const Last& last = capture != 0 ? captured_ : eager_;
  if (!last.any || last.stream == stream || last.capture != capture) return;
  check_cuda(cudaStreamWaitEvent(stream, last.event, 0));
}

std::size_t Communicator::input_elements(const Call& call) const {
  const auto ranks = static_cast<std::size_t>(ranks_);
  switch (call.kind) {
    case Kind::broadcast:
      return call.root == rank_ ? call.count : 0;
    case Kind::reduce_scatter:
    case Kind::all_to_all:
      return call.count * ranks;
    case Kind::scatter:
      return call.root == rank_ ? call.count * ranks : 0;
    case Kind::receive:
      return 0;
    default:
      return call.count;
  }
}

std::size_t Communicator::output_elements(const Call& call) const {
  const auto ranks = static_cast<std::size_t>(ranks_);
  switch (call.kind) {
    case Kind::reduce:
      return call.root == rank_ ? call.count : 0;
    case Kind::all_gather:
    case Kind::all_to_all:
      return call.count * ranks;
    case Kind::gather:
      return call.root == rank_ ? call.count * ranks : 0;
    case Kind::send:
      return 0;
    default:
      return call.count;
  }
}

void Communicator::declare(const std::vector<Call>& calls) const {
  if (simcudaChecksWork() == 0) return;
  std::vector<SimcudaAccess> accesses;
  for (const Call& call : calls) {
    const std::size_t size = size_of(call.type);
    accesses.push_back({call.from, input_elements(call) * size, false});
    // The root of a broadcast in place writes nothing.
    const bool written = call.kind != Kind::broadcast || call.root != rank_ || call.from != call.to;
    if (written) accesses.push_back({call.to, output_elements(call) * size, true});
  }
  simcudaDeclare(accesses.data(), accesses.size());
}

void Communicator::begin(const std::shared_ptr<Launch>& launch, std::function<void()> finish) {
  const auto run = std::make_shared<Run>();
  run->finish = std::move(finish);
  {
    const std::lock_guard lock(launch->mutex);
    launch->runs.push_back(run);
  }
  {
    const std::lock_guard lock(mutex_);
    if (!aborted_) {
      reclaim_locked();
      for (const Call& call : launch->calls) {
        run->numbers.push_back(next_number(call));
        post(call, run->numbers.back());
      }
    }
  }
  if (aborted_) {
    run->arrived = true;
    run->finish();
    return;
  }
  clique_->ring_all();
  if (arrived(*launch, *run)) {
    run->finish();
  } else {
    watch(std::make_shared<WaitingRun>(launch, run));
  }
}

std::uint64_t Communicator::next_number(const Call& call) {
  if (!is_message(call.kind)) return collectives_++;
  auto& numbers = call.kind == Kind::send ? sent_ : asked_;
  return numbers[static_cast<std::size_t>(call.root)]++;
}

// Puts the announcement and the input in the post. Returns the offset, or 0 if there is no room.
std::uint64_t Communicator::stage(const Call& call) {
  const std::size_t elements = input_elements(call), bytes = elements * size_of(call.type);
  Post& own = clique_->post(rank_);
  const std::uint64_t offset = own.allocate(sizeof(Announcement) + bytes);
  if (offset == 0) return 0;
  auto* const announcement = reinterpret_cast<Announcement*>(own.at(offset));
  *announcement = {static_cast<int>(call.kind),
                   call.type,
                   reduces(call.kind) ? static_cast<int>(call.reduction.kind) + 8 * call.reduction.divided : 0,
                   has_root(call.kind) ? call.root : 0,
                   call.count,
                   bytes,
                   {}};
  char* const data = own.at(offset + sizeof(Announcement));
  if (bytes > 0 && (!call.early.empty() || accessible(device_, call.from, bytes))) {
    std::memcpy(data, call.early.empty() ? call.from : call.early.data(), bytes);
  }
  if (call.reduction.multiplied) {
    const void* const address = call.reduction.scalar_address;
    multiply(call.type, data, elements, address != nullptr ? address : call.reduction.scalar.data());
  }
  return offset;
}

void Communicator::post(const Call& call, std::uint64_t number) {
  if (call.kind == Kind::receive) {
    clique_->channel(call.root, rank_).asked = number + 1;
    return;
  }
  const std::uint64_t offset = stage(call);
  if (offset == 0) throw std::bad_alloc();
  const std::uint64_t bytes = sizeof(Announcement) + input_elements(call) * size_of(call.type);
  staged_.push_back({offset, bytes, number, call.kind == Kind::send ? call.root : -1});
  if (call.kind == Kind::send) {
    Channel& channel = clique_->channel(rank_, call.root);
    channel.announced[number % most_messages] = offset;
    channel.sent = number + 1;
  } else {
    clique_->announced(rank_, number) = offset;
    clique_->member(rank_).reached = number + 1;
  }
}

bool Communicator::has_come(const Call& call, std::uint64_t number) {
  if (call.kind == Kind::send) return clique_->channel(rank_, call.root).asked > number;
  if (call.kind == Kind::receive) return clique_->channel(call.root, rank_).sent > number;
  for (int rank = 0; rank < ranks_; ++rank) {
    if (clique_->member(rank).reached <= number) return false;
  }
  return true;
}

const Announcement& Communicator::announcement(const Call& call, int rank, std::uint64_t number) {
  const std::uint64_t offset = call.kind == Kind::receive
                                   ? clique_->channel(rank, rank_).announced[number % most_messages].load()
                                   : clique_->announced(rank, number).load();
  return *reinterpret_cast<const Announcement*>(clique_->post(rank).at(offset));
}

// Describes how the other ranks' calls differ from this rank's. With such a difference, NCCL would hang or corrupt
// memory.
std::string Communicator::difference(const Call& call, std::uint64_t number) {
  const auto describe = [](int rank, Kind kind, ncclDataType_t type, std::uint64_t count, int root) {
    std::string text = "rank " + std::to_string(rank) + " calls " + name_of(kind) + " of " + std::to_string(count) +
                       " " + name_of(type);
    return has_root(kind) ? text + " with root " + std::to_string(root) : text;
  };
  if (call.kind == Kind::send) return {};
  if (call.kind == Kind::receive) {
    const Announcement& sent = announcement(call, call.root, number);
    const std::uint64_t bytes = call.count * size_of(call.type);
    if (sent.bytes == bytes) return {};
    return "Message truncated : received " + std::to_string(sent.bytes) + " bytes from rank " +
           std::to_string(call.root) + " instead of " + std::to_string(bytes);
  }
  const Announcement& own = announcement(call, rank_, number);
  for (int rank = 0; rank < ranks_; ++rank) {
    const Announcement& other = announcement(call, rank, number);
    if (other.kind == own.kind && other.type == own.type && other.reduction == own.reduction &&
        other.root == own.root && other.count == own.count) {
      continue;
    }
    return "collective " + std::to_string(number) + " of the communicator differs: " +
           describe(rank_, static_cast<Kind>(own.kind), own.type, own.count, own.root) + ", " +
           describe(rank, static_cast<Kind>(other.kind), other.type, other.count, other.root);
  }
  return {};
}

bool Communicator::arrived(const Launch& launch, Run& run) {
  if (aborted_) {
    run.arrived = true;
    return true;
  }
  if (run.broken) return false;
  for (std::size_t i = 0; i < launch.calls.size(); ++i) {
    if (!has_come(launch.calls[i], run.numbers[i])) return false;
  }
  for (std::size_t i = 0; i < launch.calls.size(); ++i) {
    const std::string text = difference(launch.calls[i], run.numbers[i]);
    if (text.empty()) continue;
    run.broken = true;
    fail({ncclInvalidUsage, text});
    return false;
  }
  const bool last_of_several = ranks_ > 1 && rank_ == ranks_ - 1;
  if (last_of_several && strikes(Fault::rank_hangs)) {
    run.broken = true;
    return false;
  }
  run.arrived = true;
  return true;
}

void Communicator::work(Launch& launch) {
  std::shared_ptr<Run> run;
  {
    const std::lock_guard lock(launch.mutex);
    const auto found =
        std::find_if(launch.runs.begin(), launch.runs.end(), [](const auto& one) { return one->arrived.load(); });
    if (found == launch.runs.end()) return;
    run = std::move(*found);
    launch.runs.erase(found);
  }
  if (aborted_ || run->numbers.size() != launch.calls.size()) return;
  if (ranks_ > 1 && rank_ == ranks_ - 1 && strikes(Fault::rank_slow))
    std::this_thread::sleep_for(std::chrono::seconds(1));
  for (std::size_t i = 0; i < launch.calls.size(); ++i) complete(launch.calls[i], run->numbers[i]);
  clique_->ring_all();
}

void Communicator::complete(const Call& call, std::uint64_t number) {
  if (call.kind == Kind::send) return;
  read(call, number);
  if (call.kind == Kind::receive) {
    clique_->channel(call.root, rank_).read = number + 1;
  } else {
    clique_->member(rank_).done = number + 1;
  }
}

void Communicator::reclaim() {
  const std::lock_guard lock(mutex_);
  reclaim_locked();
}

void Communicator::reclaim_locked() {
  if (staged_.empty()) return;
  std::uint64_t done = ~std::uint64_t{0};
  for (int rank = 0; rank < ranks_; ++rank) done = std::min(done, clique_->member(rank).done.load());
  std::erase_if(staged_, [&](const Staged& one) {
    const std::uint64_t read = one.to < 0 ? done : clique_->channel(rank_, one.to).read.load();
    if (read <= one.number) return false;
    clique_->post(rank_).release(one.offset, one.bytes);
    return true;
  });
}

}  // namespace simcuda::nccl
