#include "host_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "pages.h"

namespace simcuda::races {

namespace {

std::uintptr_t first_page(const Pending& work) { return work.begin / page_size * page_size; }
std::uintptr_t after_pages(const Pending& work) { return round_up(work.end, page_size); }

void set(std::uintptr_t begin, std::uintptr_t end, int protection) {
  mprotect(reinterpret_cast<void*>(begin), end - begin, protection);
}

bool is_known(const Clock& host, const Pending& work) {
  return work.lane < host.size() && host[work.lane] >= work.tick;
}

}  // namespace

void HostPages::add(const char* base, std::size_t bytes, std::ptrdiff_t to_second) {
  const auto begin = reinterpret_cast<std::uintptr_t>(base);
  ranges_[begin] = {begin + bytes, to_second};
}

void HostPages::remove(const void* base) {
  const auto found = ranges_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == ranges_.end()) return;
  std::erase_if(pending_,
                [&](const Pending& work) { return work.begin < found->second.end && found->first < work.end; });
  ranges_.erase(found);
}

const HostPages::Range* HostPages::find(std::uintptr_t address) const {
  const auto next = ranges_.upper_bound(address);
  if (next == ranges_.begin()) return nullptr;
  const Range& range = std::prev(next)->second;
  return address < round_up(range.end, page_size) ? &range : nullptr;
}

std::ptrdiff_t HostPages::to_second(const void* address) const {
  const Range* const range = find(reinterpret_cast<std::uintptr_t>(address));
  return range == nullptr ? 0 : range->to_second;
}

// Sets the protection of the pages of this work that the pending work asks for.
void HostPages::protect(const Pending& work) const {
  const auto wanted = [&](std::uintptr_t begin, std::uintptr_t end) {
    int protection = PROT_READ | PROT_WRITE;
    for (const Pending& other : pending_) {
      if (first_page(other) >= end || begin >= after_pages(other)) continue;
      if (other.accessor.writes) return PROT_NONE;
      protection = PROT_READ;
    }
    return protection;
  };
  const std::uintptr_t begin = first_page(work), end = after_pages(work);
  const auto others = std::count_if(pending_.begin(), pending_.end(), [&](const Pending& other) {
    return first_page(other) < end && begin < after_pages(other);
  });
  if (others <= 1) {  // of all pages the same
    set(begin, end, PROT_READ | PROT_WRITE);
    for (const Pending& other : pending_) {
      const std::uintptr_t from = std::max(begin, first_page(other)), to = std::min(end, after_pages(other));
      if (from < to) set(from, to, wanted(from, to));
    }
    return;
  }
  for (std::uintptr_t page = begin; page < end; page += page_size)
    set(page, page + page_size, wanted(page, page + page_size));
}

void HostPages::hold(Pending work) {
  if (work.begin == work.end || find(work.begin) == nullptr) return;
  pending_.push_back(std::move(work));
  protect(pending_.back());
}

void HostPages::release(const Clock& host) {
  std::vector<Pending> done;
  std::erase_if(pending_, [&](const Pending& work) {
    if (!is_known(host, work)) return false;
    done.push_back(work);
    return true;
  });
  for (const Pending& work : done) protect(work);
}

std::optional<Pending> HostPages::touch(std::uintptr_t address, bool write, bool& known) {
  known = find(address) != nullptr;
  if (!known) return std::nullopt;
  std::optional<Pending> found;
  std::vector<Pending> there;
  // Work on other bytes of the page is no longer watched: the page cannot be half accessible.
  std::erase_if(pending_, [&](const Pending& work) {
    if (address < first_page(work) || address >= after_pages(work)) return false;
    there.push_back(work);
    if (work.begin <= address && address < work.end && (write || work.accessor.writes)) found = work;
    return true;
  });
  for (const Pending& work : there) protect(work);
  if (there.empty())
    set(address / page_size * page_size, address / page_size * page_size + page_size, PROT_READ | PROT_WRITE);
  return found;
}

}  // namespace simcuda::races
