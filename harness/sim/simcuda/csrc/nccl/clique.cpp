#include "clique.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>

namespace simcuda::nccl {

namespace {

constexpr std::uint64_t magic_value = 0x31716c636e6d6973;  // contains the layout's version

std::string text_of(const char* format, int a, int b, int c = 0) {
  char text[200];
  std::snprintf(text, sizeof text, format, a, b, c);
  return text;
}

}  // namespace

SharedFile Clique::offer() {
  const SharedFile made = make_shared_file("simnccl-clique", sizeof(CliquePage));
  auto* const page = made.file < 0 ? nullptr : static_cast<CliquePage*>(map_shared_file(made, sizeof(CliquePage)));
  if (page == nullptr) throw Failure{ncclSystemError, "there is no memory for a communicator"};
  page->magic = magic_value;
  munmap(page, sizeof(CliquePage));
  return made;
}

void Clique::withdraw(const SharedFile& file) { close(file.file); }

Clique::Clique(const SharedFile& file) {
  page_ = static_cast<CliquePage*>(map_shared_file(file, sizeof(CliquePage)));
  if (page_ == nullptr || page_->magic != magic_value) {
    throw Failure{ncclSystemError, text_of("process %d, which made the unique id, cannot be reached (file %d)",
                                           file.process, file.file)};
  }
}

Clique::~Clique() { munmap(page_, sizeof(CliquePage)); }

void Clique::join(int rank, int ranks, int device) {
  Post* const own = Post::own();
  if (own == nullptr) throw Failure{ncclSystemError, "there is no shared memory for data"};
  std::uint32_t none = 0;
  if (!page_->ranks.compare_exchange_strong(none, static_cast<std::uint32_t>(ranks)) &&
      none != static_cast<std::uint32_t>(ranks)) {
    throw Failure{ncclInvalidArgument, text_of("mismatch in rank count: rank %d has %d, others have %d", rank, ranks,
                                               static_cast<int>(none))};
  }
  Member& member = page_->members[rank];
  std::uint32_t nobody = 0;
  if (!member.joined.compare_exchange_strong(nobody, 1)) {
    throw Failure{ncclInvalidUsage, text_of("rank %d of %d ranks has already checked in", rank, ranks)};
  }
  member.post = own->file();
  member.device = device;
  member.joined = 2;
  page_->joined.fetch_add(1);
  page_->bell.ring();
}

bool Clique::await(const std::atomic<bool>& given_up) {
  while (true) {
    const std::uint32_t seen = page_->bell.seen();
    if (given_up) return false;
    if (page_->joined == page_->ranks) break;
    page_->bell.sleep(seen);
  }
  for (int a = 0; a < ranks(); ++a) {
    for (int b = 0; b < a; ++b) {
      if (member(a).device == member(b).device) {
        throw Failure{ncclInvalidUsage, text_of("Duplicate GPU detected : rank %d and rank %d both on CUDA device %x",
                                                a, b, (member(a).device + 1) << 12)};
      }
    }
  }
  for (int rank = 0; rank < ranks(); ++rank) {
    auto post = Post::of(member(rank).post);
    if (post == nullptr) {
      throw Failure{ncclRemoteError,
                    text_of("the process of rank %d cannot be reached (%d)", rank, member(rank).post.process)};
    }
    posts_.push_back(std::move(post));
  }
  return true;
}

std::vector<std::vector<std::int64_t>> Clique::exchange(int rank, const std::vector<int>& among,
                                                        const std::int64_t (&numbers)[4],
                                                        const std::atomic<bool>& given_up) {
  // The numbers stay until the next exchange but one. By then all ranks have read them.
  const std::uint64_t turn = member(rank).exchanged;
  std::copy(numbers, numbers + 4, member(rank).given[turn % 2]);
  member(rank).exchanged = turn + 1;
  page_->bell.ring();
  std::vector<std::vector<std::int64_t>> found;
  for (const int other : among) {
    while (true) {
      const std::uint32_t seen = page_->bell.seen();
      if (given_up) return {};
      if (member(other).exchanged > turn) break;
      page_->bell.sleep(seen);
    }
    const auto& given = member(other).given[turn % 2];
    found.emplace_back(given, given + 4);
  }
  return found;
}

void Clique::wake() { page_->bell.ring(); }

void Clique::ring_all() {
  std::set<Post*> rung;
  for (const auto& post : posts_) {
    if (rung.insert(post.get()).second) post->bell().ring();
  }
}

}  // namespace simcuda::nccl
