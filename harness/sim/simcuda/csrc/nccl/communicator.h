// One rank's communicator, and its work together with the other ranks.
//
// Each call becomes one piece of work of its stream (simcudaLaunchShared). When the stream reaches it, the rank copies
// its data to its post and announces it. When all ranks of a collective, or both ranks of a message, have arrived, the
// stream continues and reads the data that the others have posted. No thread waits meanwhile.
#pragma once

#include <nccl.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "clique.h"
#include "reduction.h"

namespace simcuda::nccl {

enum class Kind : int {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  gather,
  scatter,
  send,
  receive
};
inline bool is_message(Kind kind) { return kind == Kind::send || kind == Kind::receive; }
const char* name_of(Kind kind);

// One call of the program. For a message, `root` is the other rank.
struct Call {
  Kind kind;
  const void* from;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  int root = 0;
  ncclRedOp_t op = ncclSum;
  Reduction reduction{};
  std::vector<char> early{};  // the input that a fault uses instead of `from`
};

struct Launch;

// A launch that its stream has reached.
struct Run {
  std::vector<std::uint64_t> numbers;  // one number per call
  std::function<void()> finish;        // lets the stream continue
  std::atomic<bool> arrived{false};    // whether the other ranks have arrived
  bool broken = false;                 // whether they never will; only the watching thread uses it
};

// Calls that are launched together: those of a group for one communicator, or a single one. Graphs run a launch
// repeatedly.
struct Launch {
  std::shared_ptr<class Communicator> communicator;
  std::vector<Call> calls;
  std::mutex mutex;
  std::deque<std::shared_ptr<Run>> runs;
};

struct Settings {
  bool blocking = true;
  std::string name;
};

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(int device, Settings settings);
  static std::shared_ptr<Communicator> find(ncclComm_t handle);  // throws Failure
  static void add(const std::shared_ptr<Communicator>& communicator);
  static void remove(const Communicator& communicator);
  ncclComm_t handle() { return reinterpret_cast<ncclComm_t>(this); }

  // Joins the other ranks and waits for them. An exception also becomes the communicator's failure.
  void start(const SharedFile& file, int rank, int ranks);
  // Joins a communicator whose ranks are taken from `parent`: call it before `start`. Throws Failure.
  void derive(Communicator& parent, const std::vector<int>& among, std::int64_t color, std::int64_t key);

  int device() const { return device_; }  // index among the visible devices
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const Settings& settings() const { return settings_; }
  Clique& clique() { return *clique_; }

  ncclResult_t state();  // ncclInProgress until it is ready; the error after a failure
  void check_ready();    // throws Failure
  bool aborted() const { return aborted_; }
  void fail(const Failure& failure);
  void abort();  // streams continue without the pending operations
  bool finalized() const { return finalized_; }
  void finalize();  // further operations are refused
  void suspend(bool suspended) { suspended_ = suspended; }
  bool suspended() const { return suspended_; }
  void close();  // frees its CUDA resources
  void drain();  // waits for all pending operations

  // Launches calls on a stream. Throws Failure.
  void launch(std::vector<Call> calls, cudaStream_t stream);
  // Makes later work on `stream` wait for launches on other streams. Throws Failure.
  void order(cudaStream_t stream);

  int add_operation(const Reduction& reduction, ncclDataType_t type);
  void remove_operation(int op);                        // throws Failure
  Reduction reduction_of(int op, ncclDataType_t type);  // throws Failure

  // Returns whether the stream can continue. The watching thread calls it.
  bool arrived(const Launch& launch, Run& run);
  void reclaim();

 private:
  friend struct Pending;
  struct Staged {
    std::uint64_t offset, bytes, number;
    int to;  // the rank that reads the data; -1 for all
  };

  void begin(const std::shared_ptr<Launch>& launch, std::function<void()> finish);
  void work(Launch& launch);
  std::uint64_t stage(const Call& call);
  void post(const Call& call, std::uint64_t number);
  std::uint64_t next_number(const Call& call);
  bool has_come(const Call& call, std::uint64_t number);
  std::string difference(const Call& call, std::uint64_t number);
  const Announcement& announcement(const Call& call, int rank, std::uint64_t number);
  void complete(const Call& call, std::uint64_t number);
  void read(const Call& call, std::uint64_t number);
  void reclaim_locked();
  std::size_t input_elements(const Call& call) const;
  std::size_t output_elements(const Call& call) const;
  void declare(const std::vector<Call>& calls) const;  // for the check for races: the memory that they use

  const int device_;
  const Settings settings_;
  int rank_ = 0, ranks_ = 0;
  std::unique_ptr<Clique> clique_;
  std::atomic<bool> aborted_{false}, ready_{false}, finalized_{false}, suspended_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  Failure failure_{ncclSuccess, ""};
  std::uint64_t collectives_ = 0;
  std::array<std::uint64_t, most_ranks> sent_{}, asked_{};
  std::deque<Staged> staged_;
  std::map<int, std::pair<Reduction, ncclDataType_t>> operations_;
  int next_operation_ = ncclNumOps;
  int pending_ = 0;                   // launches that are queued or run
  std::vector<char> last_broadcast_;  // used by a fault

  // The stream of the last launch and the event after it, for eager launches and for captured ones.
  struct Last {
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    unsigned long long capture = 0;
    bool any = false;
  };
  Last eager_, captured_;
};

void note_error(const Failure& failure);  // for ncclGetLastError
const char* last_error();

}  // namespace simcuda::nccl
