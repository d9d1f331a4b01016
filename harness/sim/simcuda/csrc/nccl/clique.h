// The memory that the ranks of one communicator share: who they are, and how far each has come.
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
constexpr std::size_t most_collectives = 4096;  // that a rank is ahead of another, at most
constexpr std::size_t most_messages = 1024;     // that wait between two ranks

// What a rank says before its data, which follow it: all ranks must say the same of a collective, and both of a
// message.
struct Announcement {
  int kind;
  ncclDataType_t type;
  int reduction;
  int root;
  std::uint64_t count;
  std::uint64_t bytes;  // of the data
  std::uint64_t unused[4];
};
static_assert(sizeof(Announcement) == 64);

struct Member {
  std::atomic<std::uint32_t> joined;  // 0 nobody, 1 somebody is about to, 2 joined
  SharedFile post;
  int device;  // among all of the machine
  // Numbers of collectives: those that the rank has come to, and those whose data it has read.
  std::atomic<std::uint64_t> reached, done;
  // Of exchanges of the host, such as for a split: how many, and what was given in the last two.
  std::atomic<std::uint64_t> exchanged;
  std::int64_t given[2][4];
};

// Messages from one rank to another, numbered: those that were sent, asked for, and read.
struct Channel {
  std::atomic<std::uint64_t> sent, asked, read;
  std::atomic<std::uint64_t> announced[most_messages];  // offsets in the sender's post
};

struct CliquePage {
  std::uint64_t magic;
  std::atomic<std::uint32_t> ranks;   // 0 until the first one joins
  std::atomic<std::uint32_t> joined;  // how many have
  Bell bell;                          // for those who wait until all have joined, and for exchanges
  Member members[most_ranks];
  std::atomic<std::uint64_t> announced[most_ranks][most_collectives];  // offsets in the rank's post
  Channel channels[most_ranks][most_ranks];                            // from, to
};

// What a call of the program is refused with, or what broke later. The text is for ncclGetLastError.
struct Failure {
  ncclResult_t code;
  std::string text;
};

// The shared memory as one rank has it.
class Clique {
 public:
  // A new one, which others find by the file as long as this process keeps it. Throws Failure.
  static SharedFile offer();
  static void withdraw(const SharedFile& file);

  // Opens it. Throws Failure.
  explicit Clique(const SharedFile& file);
  ~Clique();
  Clique(const Clique&) = delete;
  Clique& operator=(const Clique&) = delete;

  // The rank is there. Throws Failure if somebody else is it, or if the ranks do not agree how many they are.
  void join(int rank, int ranks, int device);
  // Returns when all are there, or false when `given_up` is set. Throws Failure if two have the same device.
  bool await(const std::atomic<bool>& given_up);
  // Gives four numbers, and returns those that these members have given; empty if `given_up` was set meanwhile. Calls
  // are made by all of them, in the same order.
  std::vector<std::vector<std::int64_t>> exchange(int rank, const std::vector<int>& among,
                                                  const std::int64_t (&numbers)[4], const std::atomic<bool>& given_up);
  void wake();  // those who wait, to look at `given_up`

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
