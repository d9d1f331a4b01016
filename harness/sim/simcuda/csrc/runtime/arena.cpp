#include "arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "access.h"
#include "device.h"
#include "error.h"
#include "ledger.h"
#include "pages.h"
#include "rights.h"

namespace simcuda {

namespace {

constexpr std::size_t least_span = std::size_t{8} << 30;

}  // namespace

std::string Arena::file_name(int number) { return "simcuda-" + std::to_string(number); }

Arena::Arena(Device& device)
    : device_(device), span_(round_up(std::max(4 * device.memory, least_span), huge_page_size)) {
  file_ = memfd_create(file_name(device.number).c_str(), MFD_CLOEXEC);
  // The mapping has room to spare, so that the base can be at a multiple of 2 MiB.
  void* const room =
      file_ < 0 || ftruncate(file_, static_cast<off_t>(span_)) != 0
          ? MAP_FAILED
          : mmap(nullptr, span_ + huge_page_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room != MAP_FAILED) {
    char* const begin = static_cast<char*>(room);
    char* const aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<std::uintptr_t>(room), huge_page_size));
    if (mmap(aligned, span_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file_, 0) != MAP_FAILED) {
      base_ = aligned;
    }
    if (aligned != begin) munmap(begin, static_cast<std::size_t>(aligned - begin));
    munmap(aligned + span_, huge_page_size - static_cast<std::size_t>(aligned - begin));
    // A forked child cannot use CUDA. Without the mapping, the fork is cheaper.
    if (base_ != nullptr) madvise(base_, span_, MADV_DONTFORK);
  }
  if (base_ == nullptr) {
    if (file_ >= 0) close(file_);
    throw Error(cudaErrorMemoryAllocation);
  }
  gaps_[0] = span_;
  protect_device_memory(base_, span_, PROT_NONE);
  watch_accesses(base_, span_, device_);
}

void* Arena::reserve(std::size_t bytes) {
  if (bytes == 0 || bytes > span_) return nullptr;
  const std::size_t size = round_up(bytes, page_size), alignment = size >= huge_page_size ? huge_page_size : page_size;
  const std::lock_guard lock(mutex_);
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    const auto [begin, length] = *gap;
    const std::size_t place = round_up(begin, alignment);
    if (place + size > begin + length) continue;
    gaps_.erase(gap);
    if (place != begin) gaps_[begin] = place - begin;
    if (place + size != begin + length) gaps_[place + size] = begin + length - place - size;
    if (mprotect(base_ + place, size, PROT_READ | PROT_WRITE) == 0) return base_ + place;
    insert(place, size);  // the process has reached its limit of mappings
    return nullptr;
  }
  return nullptr;
}

void Arena::release(void* address, std::size_t bytes) {
  discard(address, bytes);
  const std::size_t size = round_up(bytes, page_size);
  const std::lock_guard lock(mutex_);
  mprotect(address, size, PROT_NONE);
  insert(offset(address), size);
}

void Arena::insert(std::size_t begin, std::size_t size) {
  auto after = gaps_.lower_bound(begin);
  if (after != gaps_.end() && after->first == begin + size) {
    size += after->second;
    after = gaps_.erase(after);
  }
  if (after != gaps_.begin()) {
    if (const auto before = std::prev(after); before->first + before->second == begin) {
      before->second += size;
      return;
    }
  }
  gaps_[begin] = size;
}

void Arena::discard(void* address, std::size_t bytes) {
  const std::size_t size = round_up(bytes, page_size);
  if (fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset(address)),
                static_cast<off_t>(size)) != 0) {
    madvise(address, size, MADV_REMOVE);
  }
}

bool Arena::take(std::size_t bytes) {
  std::size_t now = used_.load(std::memory_order_relaxed);
  do {
    if (bytes > device_.memory || now > device_.memory - bytes) return false;
  } while (!used_.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
  ledger::add_memory(device_.number, static_cast<std::int64_t>(bytes));
  return true;
}

void Arena::give_back(std::size_t bytes) {
  used_.fetch_sub(bytes, std::memory_order_relaxed);
  ledger::add_memory(device_.number, -static_cast<std::int64_t>(bytes));
}

std::size_t Arena::free() const {
  const std::size_t used = this->used();
  return used < device_.memory ? device_.memory - used : 0;
}

Arena& arena_of(Device& device) {
  // Never destroyed: programs free memory until the very end of the process.
  static std::mutex mutex;
  static auto* const arenas = new std::vector<std::unique_ptr<Arena>>(static_cast<std::size_t>(device_count()));
  const std::lock_guard lock(mutex);
  auto& arena = arenas->at(static_cast<std::size_t>(device.index));
  if (!arena) arena = std::make_unique<Arena>(device);
  return *arena;
}

}  // namespace simcuda
