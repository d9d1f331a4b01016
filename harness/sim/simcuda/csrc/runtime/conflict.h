// What the checks of work speak about: accesses, who makes them, and what is wrong with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../include/simcuda_races.h"

namespace simcuda::races {

using Access = SimcudaAccess;
using Clock = std::vector<std::uint64_t>;  // by lane

// What was launched or captured: the name of the work, and the place in the program.
struct Origin {
  const char* name;            // never freed
  std::shared_ptr<void> site;  // of SimcudaSites; may be null
};

// One access. For a node of a graph, the stream is that of the graph's launch. `device`: `the_host` for an access of
// the program itself.
constexpr int the_host = -1;
struct Accessor {
  std::shared_ptr<const Origin> origin;
  int device = 0;
  unsigned long long stream = 0;
  bool in_graph = false;
  bool writes = false;
};

// Two accesses without an order, or what is wrong with one, which is then the later one.
struct Conflict {
  enum class Kind {
    unordered,
    reused,     // and the allocator gave the memory to another tensor between them
    outlived,   // a graph uses memory that was freed after the capture
    unwritten,  // nothing has written the bytes since the allocator gave them to a tensor
    refused,    // a GPU would not do it
  };
  Accessor earlier, later;
  Kind kind;
  std::size_t bytes;
  const char* why = "";  // for `refused`: which memory it is, and what to do
  const char* instead = "";
};
using Conflicts = std::vector<Conflict>;

}  // namespace simcuda::races
