// The memory that the ranks of one communicator share: its members, and the progress of each.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "post.h"

namespace simcuda::nccl {

constexpr int most_ranks = 64;
constexpr std::size_t most_collectives = 4096;  // the most collectives that a rank can be ahead of another
constexpr std::size_t most_messages = 1024;     // the most messages that can be pending between two ranks

// The header of a rank's data. It must be the same on all ranks of a collective, and on both sides of a message.
struct Announcement {
  int kind;
  ncclDataType_t type;
  int reduction;
  int root;
  std::uint64_t count;
  std::uint64_t bytes;  // size of the data
  std::uint64_t unused[4];
};
static_assert(sizeof(Announcement) == 64);

struct Member {
  std::atomic<std::uint32_t> joined;  // 0 nobody, 1 joining, 2 joined
  SharedFile post;
  int device;  // index among all devices of the machine
  // Counts of collectives: those that the rank has reached, and those whose data it has read.
  std::atomic<std::uint64_t> reached, done;
  // Exchanges of the host, such as for a split: their count, and the numbers of the last two.
  std::atomic<std::uint64_t> exchanged;
  std::int64_t given[2][4];
};

// Counts of messages from one rank to another: sent, requested by the receiver, and read.
struct Channel {
  std::atomic<std::uint64_t> sent, asked, read;
  std::atomic<std::uint64_t> announced[most_messages];  // offsets in the sender's post
};

struct CliquePage {
  std::uint64_t magic;
  std::atomic<std::uint32_t> ranks;   // 0 until the first one joins
  std::atomic<std::uint32_t> joined;  // number of ranks that have joined
  Bell bell;                          // for ranks that wait for others to join, and for exchanges
  Member members[most_ranks];
  std::atomic<std::uint64_t> announced[most_ranks][most_collectives];  // offsets in the rank's post
  Channel channels[most_ranks][most_ranks];                            // by sender and receiver
};

// The error of a call, or a later failure of the communicator. ncclGetLastError returns the text.
struct Failure {
  ncclResult_t code;
  std::string text;
};

// One rank's view of the shared memory.
class Clique {
 public:
  // Creates the shared memory. Other processes can open the file until `withdraw` or the end of this process. Throws
  // Failure.
  static SharedFile offer();
  static void withdraw(const SharedFile& file);

  // Opens the shared memory. Throws Failure.
  explicit Clique(const SharedFile& file);
  ~Clique();
  Clique(const Clique&) = delete;
  Clique& operator=(const Clique&) = delete;

  // Joins as `rank`. Throws Failure if the rank is taken, or if the ranks disagree about the number of ranks.
  void join(int rank, int ranks, int device);
  // Waits until all ranks have joined; returns false if `given_up` is set. Throws Failure if two ranks have the same
  // device.
  bool await(const std::atomic<bool>& given_up);
  // Publishes four numbers, and returns those of all ranks in `among`; empty if `given_up` was set meanwhile. All of
  // these ranks must call it, in the same order.
  std::vector<std::vector<std::int64_t>> exchange(int rank, const std::vector<int>& among,
                                                  const std::int64_t (&numbers)[4], const std::atomic<bool>& given_up);
  void wake();  // makes waiting ranks check `given_up`

  int ranks() const { return static_cast<int>(page_->ranks.load()); }
  Member& member(int rank) { return page_->members[rank]; }
  Channel& channel(int from, int to) { return page_->channels[from][to]; }
  std::atomic<std::uint64_t>& announced(int rank, std::uint64_t number) {
    return page_->announced[rank][number % most_collectives];
  }
  Post& post(int rank) { return *posts_[static_cast<std::size_t>(rank)]; }
  void ring_all();

 private:
  CliquePage* page_;
  std::vector<std::shared_ptr<Post>> posts_;
};

}  // namespace simcuda::nccl
