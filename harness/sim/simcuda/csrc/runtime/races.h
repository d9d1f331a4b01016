// Finds pieces of work that use the same memory without an order between them: SIMCUDA_CHECK=races.
//
// Each stream has a clock: how far it, and every other stream, has come when its next work begins (vector clocks,
// Lamport 1978 and Mattern 1988). An event, a wait, a synchronisation and CUDA's implicit order of the legacy default
// stream join clocks. Two accesses to one byte, one of them a write, are a race unless the clock of the later one knows
// of the earlier one, whatever the times at which they happened to run.
//
// What one host thread knows, all know: threads of a program have orders among themselves that no call shows. A race
// that only a host thread could prevent is therefore not found, and none is reported that is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../../../softdevice/csrc/core/queue.h"
#include "conflict.h"

namespace simcuda::races {

bool enabled();        // whether anything is checked; costs one load
bool checks_order();   // SIMCUDA_CHECK=races
bool checks_memory();  // SIMCUDA_CHECK=memory

enum class Role { legacy, blocking, other };  // in the implicit order of the streams of a device

// The work of one stream in order. Without the check it stays empty; with it, only this module uses the fields.
struct Timeline {
  Timeline(int device, unsigned long long stream, Role role);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  const int device;
  const unsigned long long stream;
  const Role role;
  std::uint32_t lane = 0;  // given at the first work
  Clock clock;
};

// All functions have no effect without the check, and may be called from any thread.
void record(Timeline& timeline, work::Mark& mark);      // the mark stands for all work so far
void wait(Timeline& timeline, const work::Mark& mark);  // what follows on the timeline begins after the mark
void learn(const work::Mark& mark);                     // the host has seen that the mark is done
void learn(Timeline& timeline);                         // ... that all work so far is done
void learn(int device);                                 // ... of all timelines of a device
void forget(const void* address, std::size_t bytes);    // memory is allocated, or freed after a synchronisation
// Work was launched whose memory is not known, or another process may write to this one's memory: what the allocator
// has given to tensors so far counts as written.
void assume_all_written();

// Whether the allocator has given the memory at this address to a tensor.
bool in_block(const void* address);

// Remembers in the accesses of a node which blocks its graph was captured with.
void remember_blocks(std::vector<Access>& accesses);

// Pinned memory has a second mapping, through which work uses it (`host_pages.h`).
void add_pinned(const char* base, std::size_t bytes, std::ptrdiff_t to_second);
void remove_pinned(const void* base);
// Returns the address by which work uses this memory.
char* for_work(char* address);
// Called by the handler of a fault. Returns whether the memory is pinned, and accessible now. `of_work`: the access is
// one of work, which has its order.
bool serve_access(const void* address, bool write, bool of_work);

// The calling thread of the program uses device memory, which ends the process on a GPU.
void report_host_access(bool write);

std::shared_ptr<const Origin> origin(const char* name);
// The work begins after all that the timeline and the host know.
Conflicts access(Timeline& timeline, const std::vector<Access>& accesses, std::shared_ptr<const Origin> origin);
// Prints each pair of places once. Call it without locks, since a site may need Python's.
void report(const Conflicts& conflicts);
const SimcudaSites& sites();  // without functions until the operators' library is there

// One launch of a graph: its nodes begin after the nodes that they need, and those without needs at the launch.
class Replay {
 public:
  // `lanes`: kept by the graph between its launches, which are ordered.
  Replay(Timeline& timeline, std::vector<std::uint32_t>& lanes, std::size_t nodes);
  void node(std::size_t place, const std::vector<std::size_t>& needs, const std::vector<Access>& accesses,
            const std::shared_ptr<const Origin>& origin);
  void record(std::size_t place, work::Mark& mark);
  void wait(std::size_t place, const work::Mark& mark);
  Conflicts finish();  // what follows on the timeline begins after all nodes

 private:
  Timeline& timeline_;
  std::vector<std::uint32_t>& lanes_;
  std::vector<Clock> clocks_;
  std::vector<std::size_t> branches_;  // by node: the place of its lane
  std::vector<bool> continued_;        // by node: whether another one has taken over its branch
  std::size_t used_ = 0;
  Clock base_;
  Conflicts conflicts_;
};

}  // namespace simcuda::races
