#include "communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "../runtime/handles.h"
#include "cuda.h"
#include "faults.h"
#include "progress.h"

namespace simcuda::nccl {

namespace {

Handles<Communicator>& handles() {
  static auto* const handles = new Handles<Communicator>;
  return *handles;
}

std::mutex& text_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
char text[1024];

// Whether NCCL_DEBUG is WARN, INFO or TRACE, as NCCL spells them.
bool warns() {
  const char* const level = std::getenv("NCCL_DEBUG");
  return level != nullptr &&
         (std::strcmp(level, "WARN") == 0 || std::strcmp(level, "INFO") == 0 || std::strcmp(level, "TRACE") == 0);
}

}  // namespace

void note_error(const Failure& failure) {
  {
    const std::lock_guard lock(text_mutex());
    std::snprintf(text, sizeof text, "%s", failure.text.c_str());
  }
  if (warns()) {
    std::printf("%d [%d] NCCL WARN (simulated) %s\n", getpid(), current_device(), failure.text.c_str());
    std::fflush(stdout);
  }
}

const char* last_error() { return text; }

Communicator::Communicator(int device, Settings settings) : device_(device), settings_(std::move(settings)) {}

std::shared_ptr<Communicator> Communicator::find(ncclComm_t handle) {
  if (auto found = handles().find(handle)) return found;
  throw Failure{ncclInvalidArgument, handle == nullptr
                                         ? "comm argument is NULL"
                                         : "comm is no communicator, or one that was destroyed or aborted"};
}
void Communicator::add(const std::shared_ptr<Communicator>& communicator) { handles().add(communicator); }
void Communicator::remove(const Communicator& communicator) { handles().remove(&communicator); }

void Communicator::start(const SharedFile& file, int rank, int ranks) {
  try {
    auto clique = std::make_unique<Clique>(file);
    Clique& joined = *clique;
    {
      const std::lock_guard lock(mutex_);
      clique_ = std::move(clique);
      rank_ = rank;
      ranks_ = ranks;
    }
    joined.join(rank, ranks, machine_number(device_));
    start_watching();
    if (!joined.await(aborted_)) throw Failure{ncclInternalError, "the communicator was aborted while it was made"};
    ready_ = true;
  } catch (const Failure& failure) {
    fail(failure);
    throw;
  }
}

// The first rank of the new communicator creates the shared memory, and passes its file to the others.
void Communicator::derive(Communicator& parent, const std::vector<int>& among, std::int64_t color, std::int64_t key) {
  // An aborted communicator can still be shrunk.
  const std::atomic<bool>& given_up = parent.aborted_ ? aborted_ : parent.aborted_;
  try {
    const auto colors = parent.clique().exchange(parent.rank(), among, {color, key, 0, 0}, given_up);
    std::vector<std::pair<std::int64_t, int>> members;  // keys, and ranks in the parent
    for (std::size_t i = 0; i < colors.size(); ++i) {
      if (colors[i][0] == color) members.emplace_back(colors[i][1], among[i]);
    }
    std::sort(members.begin(), members.end());
    const auto own = std::find_if(members.begin(), members.end(),
                                  [&](const auto& member) { return member.second == parent.rank(); });
    const bool offers = color != NCCL_SPLIT_NOCOLOR && own == members.begin() && !members.empty();
    const SharedFile offered = offers ? Clique::offer() : SharedFile{};
    const auto files = parent.clique().exchange(parent.rank(), among, {offered.process, offered.file, 0, 0}, given_up);
    if (files.empty()) throw Failure{ncclInternalError, "the communicator was aborted while another was made of it"};
    if (color == NCCL_SPLIT_NOCOLOR) return;
    const auto place = std::find(among.begin(), among.end(), members.front().second) - among.begin();
    const auto& offer = files[static_cast<std::size_t>(place)];
    start({static_cast<pid_t>(offer[0]), static_cast<int>(offer[1])}, static_cast<int>(own - members.begin()),
          static_cast<int>(members.size()));
    if (offers) Clique::withdraw(offered);
  } catch (const Failure& failure) {
    fail(failure);
    throw;
  }
}

ncclResult_t Communicator::state() {
  const std::lock_guard lock(mutex_);
  if (failure_.code != ncclSuccess) return strikes(Fault::async_error_untold) ? ncclSuccess : failure_.code;
  if (!ready_) return ncclInProgress;
  return finalized_ && pending_ > 0 ? ncclInProgress : ncclSuccess;
}

void Communicator::check_ready() {
  const std::lock_guard lock(mutex_);
  if (aborted_) throw Failure{ncclInvalidUsage, "the communicator was aborted"};
  if (finalized_) throw Failure{ncclInvalidUsage, "the communicator was finalized"};
  if (suspended_) throw Failure{ncclInvalidUsage, "the communicator is suspended"};
  if (failure_.code != ncclSuccess) throw failure_;
  if (!ready_) {
    throw Failure{ncclInvalidArgument,
                  "Attempt to use communicator before the previous operation returned ncclSuccess"};
  }
}

void Communicator::fail(const Failure& failure) {
  note_error(failure);
  const std::lock_guard lock(mutex_);
  if (failure_.code == ncclSuccess) failure_ = failure;
}

void Communicator::abort() {
  aborted_ = true;
  {
    const std::lock_guard lock(mutex_);
    if (clique_) clique_->wake();
  }
  if (Post::own() != nullptr) look_again();
}

void Communicator::finalize() { finalized_ = true; }

void Communicator::close() {
  for (Last* const last : {&eager_, &captured_}) {
    if (last->event != nullptr) cudaEventDestroy(std::exchange(last->event, nullptr));
  }
}

void Communicator::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return pending_ == 0 || aborted_; });
}

int Communicator::add_operation(const Reduction& reduction, ncclDataType_t type) {
  const std::lock_guard lock(mutex_);
  operations_[next_operation_] = {reduction, type};
  return next_operation_++;
}

void Communicator::remove_operation(int op) {
  const std::lock_guard lock(mutex_);
  if (operations_.erase(op) == 0) throw Failure{ncclInvalidArgument, "the operator is not one of this communicator"};
}

Reduction Communicator::reduction_of(int op, ncclDataType_t type) {
  if (op >= 0 && op < ncclNumOps) return built_in(static_cast<ncclRedOp_t>(op), type, ranks_);
  const std::lock_guard lock(mutex_);
  const auto found = operations_.find(op);
  if (found == operations_.end()) {
    throw Failure{ncclInvalidArgument, "invalid reduction operation " + std::to_string(op)};
  }
  if (found->second.second != type) {
    throw Failure{ncclInvalidArgument, "the operator was made for " + std::string(name_of(found->second.second)) +
                                           " and is used for " + name_of(type)};
  }
  return found->second.first;
}

}  // namespace simcuda::nccl
