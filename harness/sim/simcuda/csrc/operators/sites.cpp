#include "sites.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <simcuda_races.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <memory>
#include <mutex>
#include <string>

namespace simcuda::sites {
namespace {

// The frames of a report: those of the program itself, or the innermost ones of torch if there are no others.
constexpr std::size_t most_frames = 4;

std::shared_ptr<void> gather() {
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
}

bool is_of_torch(const std::string& file) { return file.find("/site-packages/torch/") != std::string::npos; }

std::string describe(const void* site) {
  auto* const traceback = static_cast<torch::CapturedTraceback*>(const_cast<void*>(site));
  const auto symbolized = torch::symbolize({traceback});
  std::string own, all;
  std::size_t own_frames = 0, all_frames = 0;
  for (const auto place : symbolized.tracebacks.at(0)) {
    const auto& frame = symbolized.all_frames.at(place);
    const std::string line = frame.filename + ":" + std::to_string(frame.lineno) + " in " + frame.funcname + "\n";
    if (all_frames++ < most_frames) {
      all += line;
    }
    if (!is_of_torch(frame.filename) && own_frames++ < most_frames) {
      own += line;
    }
  }
  return own.empty() ? all : own;
}

void note(const c10::CachingDeviceAllocator::TraceEntry& entry) {
  if (entry.action_ == c10::CachingDeviceAllocator::TraceEntry::ALLOC) {
    simcudaNoteBlock(reinterpret_cast<const void*>(entry.addr_), entry.size_);
  }
}

}  // namespace

bool wanted() {
  static const bool wanted = simcudaChecksRaces() != 0;
  return wanted;
}

void follow_allocator() {
  static std::once_flag followed;
  std::call_once(followed, [] { c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(&note); });
}

void install() {
  if (wanted()) {
    constexpr SimcudaSites functions{&gather, &describe};
    simcudaSetSites(&functions);
  }
}

}  // namespace simcuda::sites
