// What the operators' library tells the simulated runtime for SIMCUDA_CHECK: the memory that work uses, the
// places in the program, and the blocks of torch's allocator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

// A run of bytes that work reads or writes. `item`: the bytes of an element, which its address is a multiple of.
// `generation`: for a node of a graph, that of the block at the capture. A write of 0 bytes at no address stands for
// more runs than are listed.
struct SimcudaAccess {
  const void* address;
  std::size_t bytes;
  bool write;
  std::uint32_t item = 1;
  std::uint64_t generation = 0;
};

// How a place in the program is remembered when work is launched, and described when it is reported.
struct SimcudaSites {
  std::shared_ptr<void> (*gather)();          // may return null
  std::string (*describe)(const void* site);  // a line per frame, the innermost first
  // Called without locks before work is launched.
  void (*before_work)();
  // Calls the function soon in the main thread, between two steps of the program, or returns false. A signal handler
  // may use it.
  bool (*call_soon)(void (*function)());
};

extern "C" {

int simcudaChecksWork();                                                // 1 if SIMCUDA_CHECK asks for anything
void simcudaSetSites(const SimcudaSites* sites);                        // copied
void simcudaDeclare(const SimcudaAccess* accesses, std::size_t count);  // of this thread's next launch of the runtime's
// torch's allocator gives this block to a tensor, or has got it back. `of_graphs`: it is in a pool of graphs, whose
// memory several tensors of a graph share. `earlier`: it had done so before the runtime was told.
void simcudaNoteBlock(const void* address, std::size_t bytes, bool of_graphs, bool earlier);
void simcudaNoteFreed(const void* address);
}
