#include "rights.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>

#include "../include/simcuda.h"
#include "races.h"

namespace simcuda {

namespace {

constexpr int no_key = -1;

int key() {
  static const int key = [] {
    if (!races::checks_memory()) return no_key;
    const int made = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (made < 0) {
      std::fprintf(stderr,
                   "simulated CUDA: SIMCUDA_CHECK=memory: the host's accesses to device memory are not noticed, since "
                   "this machine has no protection keys (`ospke` in /proc/cpuinfo)\n");
      return no_key;
    }
    return made;
  }();
  return key;
}

}  // namespace

bool guards_device_memory() { return key() != no_key; }

int protect_device_memory(void* address, std::size_t bytes, int protection) {
  return pkey_mprotect(address, bytes, protection, key());  // without a key, as mprotect
}

bool is_refused(const siginfo_t& fault) {
  return guards_device_memory() && fault.si_code == SEGV_PKUERR && fault.si_pkey == static_cast<unsigned>(key());
}

void allow_device_memory() {
  if (guards_device_memory()) pkey_set(key(), 0);
}

DeviceMemoryRight::DeviceMemoryRight(bool allowed) {
  if (!guards_device_memory()) return;
  before_ = pkey_get(key());
  pkey_set(key(), allowed ? 0 : PKEY_DISABLE_ACCESS);
}

DeviceMemoryRight::~DeviceMemoryRight() {
  if (guards_device_memory()) pkey_set(key(), static_cast<unsigned>(before_));
}

}  // namespace simcuda

extern "C" {

__attribute__((visibility("default"))) int simcudaGuardsMemory() { return simcuda::guards_device_memory() ? 1 : 0; }

__attribute__((visibility("default"))) void simcudaReadMemory(void* to, const void* from, std::size_t bytes) {
  const simcuda::DeviceMemoryRight right(true);
  std::memcpy(to, from, bytes);
}
}
