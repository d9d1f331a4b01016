// What the operators' library tells the simulated runtime for SIMCUDA_CHECK=races: the memory that work uses, the
// places in the program, and the blocks of torch's allocator.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

// A run of bytes that work reads or writes.
struct SimcudaAccess {
  const void* address;
  std::size_t bytes;
  bool write;
};

// How a place in the program is remembered when work is launched, and described when it is reported.
struct SimcudaSites {
  std::shared_ptr<void> (*gather)();          // may return null
  std::string (*describe)(const void* site);  // a line per frame, the innermost first
};

extern "C" {

int simcudaChecksRaces();                                         // 1 or 0
void simcudaSetSites(const SimcudaSites* sites);                  // copied
void simcudaDeclare(const std::vector<SimcudaAccess>* accesses);  // of this thread's next launch of the runtime's
void simcudaNoteBlock(const void* address, std::size_t bytes);    // torch's allocator gives this block to a tensor
}
