// The interface: creating, querying and destroying communicators.

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "communicator.h"
#include "cuda.h"
#include "faults.h"
#include "group.h"

using namespace simcuda::nccl;

namespace {

// The contents of an ncclUniqueId.
struct Id {
  char text[32];
  SharedFile file;
};
static_assert(sizeof(Id) <= sizeof(ncclUniqueId));
constexpr char id_text[sizeof(Id::text)] = "simulated NCCL (no GPU) 1";

// The files that this process keeps open until all ranks have joined.
std::mutex offers_mutex;
std::set<int>& offers() {
  static auto* const offers = new std::set<int>;
  return *offers;
}

constexpr unsigned config_magic = 0xcafebeef;  // NCCL_API_MAGIC, which older headers do not define

Settings settings_of(const ncclConfig_t* config, const Settings& otherwise = {}) {
  Settings settings = otherwise;
  if (config == nullptr) return settings;
  check(config->magic == config_magic, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  if (config->blocking != NCCL_CONFIG_UNDEF_INT) {
    check(config->blocking == 0 || config->blocking == 1,
          "Invalid config blocking attribute value " + std::to_string(config->blocking));
    settings.blocking = config->blocking != 0;
  }
  return settings;
}

int usable_device() {
  const int device = current_device();
  check(device >= 0, "no CUDA device", ncclUnhandledCudaError);
  check_cuda(cudaFree(nullptr));
  return device;
}

std::shared_ptr<Communicator> made(ncclComm_t* handle, int device, const Settings& settings) {
  auto communicator = std::make_shared<Communicator>(device, settings);
  Communicator::add(communicator);
  *handle = communicator->handle();
  return communicator;
}

ncclResult_t join(ncclComm_t* handle, int ranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  check(handle != nullptr, "comm argument is NULL");
  const Settings settings = settings_of(config);
  check(ranks > 0 && rank >= 0 && rank < ranks,
        "Invalid rank requested : " + std::to_string(rank) + "/" + std::to_string(ranks));
  check(ranks <= most_ranks, "the simulated NCCL has at most 64 ranks", ncclInternalError);
  Id found{};
  std::memcpy(static_cast<void*>(&found), &id, sizeof found);
  check(std::memcmp(found.text, id_text, sizeof id_text) == 0, "the unique id is not one of the simulated NCCL");
  const auto communicator = made(handle, usable_device(), settings);
  return start(communicator, [communicator, found, rank, ranks, handle] {
    try {
      communicator->start(found.file, rank, ranks);
    } catch (const Failure&) {
      if (communicator->settings().blocking) {
        Communicator::remove(*communicator);
        *handle = nullptr;
      }
      throw;
    }
    const std::lock_guard lock(offers_mutex);
    if (found.file.process == getpid() && offers().erase(found.file.file) != 0) Clique::withdraw(found.file);
  });
}

ncclResult_t derive(ncclComm_t parent_handle, ncclComm_t* handle, const std::vector<int>& excluded, bool all, int color,
                    int key, const ncclConfig_t* config) {
  const auto parent = Communicator::find(parent_handle);
  check(handle != nullptr, "newcomm argument is NULL");
  *handle = nullptr;
  std::vector<int> among;
  for (int rank = 0; rank < parent->ranks(); ++rank) {
    if (std::find(excluded.begin(), excluded.end(), rank) == excluded.end()) among.push_back(rank);
  }
  check(all || std::find(among.begin(), among.end(), parent->rank()) != among.end(),
        "the calling rank is among those that are excluded");
  const OnDevice current(parent->device());
  auto communicator = std::make_shared<Communicator>(parent->device(), settings_of(config, parent->settings()));
  if (color != NCCL_SPLIT_NOCOLOR) {
    Communicator::add(communicator);
    *handle = communicator->handle();
  }
  return start(communicator, [communicator, parent, among, color, key, handle] {
    try {
      communicator->derive(*parent, among, color, key);
    } catch (const Failure&) {
      if (communicator->settings().blocking) {
        Communicator::remove(*communicator);
        *handle = nullptr;
      }
      throw;
    }
  });
}

}  // namespace

NCCL_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return call([&] {
    check(id != nullptr, "out argument is NULL");
    Id made{};
    std::memcpy(made.text, id_text, sizeof id_text);
    made.file = Clique::offer();
    {
      const std::lock_guard lock(offers_mutex);
      offers().insert(made.file.file);
    }
    std::memset(id, 0, sizeof *id);
    std::memcpy(id, &made, sizeof made);
  });
}

NCCL_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank,
                                                ncclConfig_t* config) {
  return call([&] { return join(communicator, ranks, id, rank, config); });
}

NCCL_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank) {
  return call([&] { return join(communicator, ranks, id, rank, nullptr); });
}

// Further ids would spread the start-up over more processes. One is enough here.
NCCL_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* communicator, int ranks, int rank, int count,
                                                  ncclUniqueId* ids, ncclConfig_t* config) {
  return call([&] {
    check(ids != nullptr && count > 0, "improper usage of ncclCommInitRankScalable");
    return join(communicator, ranks, ids[0], rank, config);
  });
}

NCCL_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t* communicators, int count, const int* devices) {
  return call([&] {
    int there = 0;
    check_cuda(cudaGetDeviceCount(&there));
    check(communicators != nullptr && count > 0, "Invalid device count requested : " + std::to_string(count));
    std::vector<int> chosen(static_cast<std::size_t>(count));
    std::iota(chosen.begin(), chosen.end(), 0);
    if (devices != nullptr) chosen.assign(devices, devices + count);
    for (const int device : chosen) {
      check(device >= 0 && device < there, "Invalid device requested : " + std::to_string(device),
            ncclUnhandledCudaError);
      check(std::count(chosen.begin(), chosen.end(), device) == 1,
            "device " + std::to_string(device) + " is requested more than once", ncclInvalidUsage);
    }
    ncclUniqueId id;
    if (const ncclResult_t result = ncclGetUniqueId(&id)) return result;
    ncclGroupStart();
    for (int rank = 0; rank < count; ++rank) {
      const OnDevice current(chosen[static_cast<std::size_t>(rank)]);
      ncclCommInitRank(&communicators[rank], count, id, rank);
    }
    return ncclGroupEnd();
  });
}

NCCL_EXPORT ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  return call([&] {
    Communicator::find(parent)->check_ready();
    check(color >= 0 || color == NCCL_SPLIT_NOCOLOR, "Invalid color argument " + std::to_string(color));
    return derive(parent, made, {}, true, color, key, config);
  });
}

NCCL_EXPORT ncclResult_t ncclCommShrink(ncclComm_t parent, int* excluded, int count, ncclComm_t* made,
                                        ncclConfig_t* config, int flags) {
  return call([&] {
    check(flags == NCCL_SHRINK_DEFAULT || flags == NCCL_SHRINK_ABORT, "Invalid shrink flags " + std::to_string(flags));
    check(excluded != nullptr && count > 0, "excludeRanksList has no rank");
    const auto found = Communicator::find(parent);
    for (int i = 0; i < count; ++i) {
      check(excluded[i] >= 0 && excluded[i] < found->ranks(), "Invalid rank in excludeRanksList");
    }
    if (flags == NCCL_SHRINK_ABORT) {
      found->abort();
    } else {
      found->check_ready();
    }
    return derive(parent, made, {excluded, excluded + count}, false, 0, found->rank(), config);
  });
}

NCCL_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return call([&] {
    const auto communicator = Communicator::find(handle);
    check(!communicator->finalized(), "ncclCommFinalize : comm was finalized before", ncclInvalidArgument);
    communicator->finalize();
    if (communicator->settings().blocking) communicator->drain();
    const ncclResult_t state = communicator->state();
    return state == ncclInProgress ? state : ncclSuccess;
  });
}

NCCL_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  return call([&] {
    const auto communicator = Communicator::find(handle);
    communicator->drain();
    Communicator::remove(*communicator);
    communicator->close();
  });
}

NCCL_EXPORT ncclResult_t ncclCommAbort(ncclComm_t handle) {
  if (handle == nullptr) return ncclSuccess;
  return call([&] {
    const auto communicator = Communicator::find(handle);
    while (strikes(Fault::abort_hangs)) std::this_thread::sleep_for(std::chrono::hours(1));
    Communicator::remove(*communicator);
    communicator->abort();
    communicator->close();
  });
}

NCCL_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
  return call([&] {
    check(result != nullptr, "asyncError argument is NULL");
    *result = Communicator::find(handle)->state();
  });
}

NCCL_EXPORT ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  return call([&] {
    check(count != nullptr, "count argument is NULL");
    *count = Communicator::find(handle)->ranks();
  });
}

NCCL_EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  return call([&] {
    check(device != nullptr, "device argument is NULL");
    *device = Communicator::find(handle)->device();
  });
}

NCCL_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  return call([&] {
    check(rank != nullptr, "rank argument is NULL");
    *rank = Communicator::find(handle)->rank();
  });
}
