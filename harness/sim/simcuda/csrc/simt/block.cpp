#include "block.h"

#include <algorithm>
#include <cstdint>
#include <utility>

// Where the running thread is. Code of kernels reads them by their names in CUDA (simcuda_front.h).
extern "C" {
#define THREAD_LOCAL __attribute__((visibility("default"), tls_model("initial-exec"))) __thread
THREAD_LOCAL uint3 simcudaThreadIdx;
THREAD_LOCAL uint3 simcudaBlockIdx;
THREAD_LOCAL uint3 simcudaBlockDim;
THREAD_LOCAL uint3 simcudaGridDim;
#undef THREAD_LOCAL
}

namespace simcuda::simt {

namespace {

constexpr unsigned warp_size = 32;

thread_local Block* block_of_thread = nullptr;

template <typename Value>
Value reduced(SimcudaWarp kind, Value left, Value right) {
  switch (kind) {
    case simcuda_warp_add:
      return left + right;
    case simcuda_warp_and:
      return left & right;
    case simcuda_warp_or:
      return left | right;
    case simcuda_warp_xor:
      return left ^ right;
    case simcuda_warp_min:
    case simcuda_warp_min_signed:
      return std::min(left, right);
    default:
      return std::max(left, right);
  }
}

}  // namespace

Block* Block::running() { return block_of_thread; }

Block::Block(const SimcudaKernel& kernel, dim3 size, void** arguments, bool reversed)
    : kernel_(kernel),
      arguments_(arguments),
      reversed_(reversed),
      threads_(size.x * size.y * size.z),
      before_(block_of_thread) {
  unsigned place = 0;
  for (unsigned z = 0; z < size.z; ++z) {
    for (unsigned y = 0; y < size.y; ++y) {
      for (unsigned x = 0; x < size.x; ++x, ++place) {
        threads_[place].index = {x, y, z};
        threads_[place].lane = place % warp_size;
      }
    }
  }
  block_of_thread = this;
}

Block::~Block() {
  block_of_thread = before_;
  for (Thread& thread : threads_) {
    if (thread.stack != nullptr) idle_.push_back(std::move(thread.stack));
  }
  give_back(idle_);
}

void Block::main() {
  Block& block = *block_of_thread;
  while (true) {
    block.kernel_.call(block.arguments_);
    Thread& ended = *block.current_;
    Thread* const next = &ended + 1;
    const bool in_warp = ended.lane + 1 < warp_size && next < block.threads_.data() + block.threads_.size();
    if (!in_warp || next->state != State::fresh) break;
    // The next thread takes over the stack, without a switch.
    ended.state = State::done;
    next->stack = std::move(ended.stack);
    next->state = State::ready;
    block.current_ = next;
    simcudaThreadIdx = next->index;
  }
  block.suspend(State::done);
}

void Block::enter(Thread& thread) {
  if (thread.state == State::fresh) {
    if (idle_.empty()) {
      thread.stack = take_stack();
    } else {
      thread.stack = std::move(idle_.back());
      idle_.pop_back();
    }
    thread.fiber.prepare(*thread.stack, &Block::main);
  }
  current_ = &thread;
  simcudaThreadIdx = thread.index;
  thread.fiber.enter(outer_);
  if (current_->state == State::done) idle_.push_back(std::move(current_->stack));
  current_ = nullptr;
}

void Block::suspend(State state) {
  current_->state = state;
  current_->fiber.leave(outer_);
}

void Block::run() {
  for (Thread& thread : threads_) thread.state = State::fresh;
  ended_ = false;
  for (bool any = true; any;) {
    any = false;
    const std::size_t warps = (threads_.size() + warp_size - 1) / warp_size;
    for (std::size_t i = 0; i < warps; ++i) {
      const std::size_t first = (reversed_ ? warps - 1 - i : i) * warp_size;
      const auto lanes = static_cast<unsigned>(std::min<std::size_t>(warp_size, threads_.size() - first));
      any = run_warp(&threads_[first], lanes) || any;
      if (ended_) throw std::move(how_);
    }
    any = complete_barrier() || any;
  }
  if (std::any_of(threads_.begin(), threads_.end(), [](const Thread& one) { return one.state != State::done; })) {
    throw KernelEnded{cudaErrorLaunchTimeout,
                      "its threads wait for each other for ever, and on a GPU it would hang: " + waiting()};
  }
}

bool Block::run_warp(Warp warp, unsigned lanes) {
  bool ran = false;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    if (warp[lane].state == State::yielded) warp[lane].state = State::ready;
  }
  do {
    for (unsigned i = 0; i < lanes; ++i) {
      const unsigned lane = reversed_ ? lanes - 1 - i : i;
      // The lanes that ran before it may have made it ready.
      if (warp[lane].state != State::fresh && warp[lane].state != State::ready) continue;
      ran = true;
      enter(warp[lane]);
      if (ended_) return true;
    }
  } while (std::any_of(warp, warp + lanes, [](const Thread& one) { return one.state == State::ready; }) ||
           complete_exchanges(warp, lanes) || complete_convergence(warp, lanes));
  return ran;
}

// After a lane has ended, which the others may have waited for.
bool Block::complete_exchanges(Warp warp, unsigned lanes) {
  bool any = false;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    if (warp[lane].state != State::exchanging) continue;
    any = complete_exchange(warp, lanes, warp[lane].mask, warp[lane].kind) || any;
  }
  return any;
}

// Returns false if a lane of the mask has not come yet.
bool Block::complete_exchange(Warp warp, unsigned lanes, unsigned mask, SimcudaWarp kind) {
  Thread* members[warp_size];
  unsigned count = 0;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    Thread& thread = warp[lane];
    if ((mask >> lane & 1) == 0 || thread.state == State::done) continue;
    if (thread.state != State::exchanging || thread.mask != mask || thread.kind != kind) return false;
    members[count++] = &thread;
  }
  unsigned long long all = count > 0 ? members[0]->value : 0;
  for (unsigned i = 1; i < count; ++i) {
    if (kind == simcuda_warp_min_signed || kind == simcuda_warp_max_signed) {
      all = static_cast<std::uint32_t>(
          reduced(kind, static_cast<std::int32_t>(all), static_cast<std::int32_t>(members[i]->value)));
    } else if (kind >= simcuda_warp_add) {
      all = reduced(kind, static_cast<std::uint32_t>(all), static_cast<std::uint32_t>(members[i]->value));
    }
  }
  if (kind == simcuda_warp_ballot) {
    all = 0;
    for (unsigned i = 0; i < count; ++i)
      all |= static_cast<unsigned long long>(members[i]->value != 0) << members[i]->lane;
  }
  for (unsigned i = 0; i < count; ++i) {
    Thread& thread = *members[i];
    thread.result = all;
    if (kind == simcuda_warp_shuffle) thread.result = thread.value;
    if (kind == simcuda_warp_match) thread.result = 0;
    for (unsigned other = 0; other < count; ++other) {
      const Thread& its = *members[other];
      if (kind == simcuda_warp_shuffle && its.lane == thread.source) thread.result = its.value;
      if (kind == simcuda_warp_match && its.value == thread.value) thread.result |= 1ull << its.lane;
    }
  }
  for (unsigned i = 0; i < count; ++i) members[i]->state = State::ready;
  return count > 0;
}

bool Block::complete_convergence(Warp warp, unsigned lanes) {
  const auto first = std::find_if(warp, warp + lanes, [](const Thread& one) { return one.state == State::converging; });
  if (first == warp + lanes) return false;
  const void* const place = first->place;
  unsigned mask = 0;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    if (warp[lane].state == State::converging && warp[lane].place == place) mask |= 1u << lane;
  }
  for (unsigned lane = 0; lane < lanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    warp[lane].result = mask;
    warp[lane].state = State::ready;
  }
  return true;
}

bool Block::complete_barrier() {
  unsigned long long live = 0, passed = 0;
  for (const Thread& thread : threads_) {
    if (thread.state == State::done) continue;
    if (thread.state != State::at_barrier) return false;
    ++live;
    passed += thread.value != 0;
  }
  for (Thread& thread : threads_) {
    if (thread.state == State::done) continue;
    thread.result = live << 32 | passed;
    thread.state = State::ready;
  }
  return live > 0;
}

unsigned long long Block::barrier(int predicate) {
  current_->value = predicate != 0;
  suspend(State::at_barrier);
  return current_->result;
}

unsigned long long Block::exchange(SimcudaWarp kind, unsigned mask, unsigned long long value, unsigned source) {
  Thread& thread = *current_;
  if ((mask >> thread.lane & 1) == 0) {
    end(cudaErrorLaunchFailure, "lane " + std::to_string(thread.lane) + " has called a warp function with mask " +
                                    std::to_string(mask) + ", to which it does not belong");
  }
  thread.kind = kind;
  thread.mask = mask;
  thread.value = value;
  thread.source = source;
  thread.state = State::exchanging;
  const auto first = static_cast<std::size_t>(&thread - threads_.data()) - thread.lane;
  const auto lanes = static_cast<unsigned>(std::min<std::size_t>(warp_size, threads_.size() - first));
  if (!complete_exchange(&threads_[first], lanes, mask, kind)) {
    thread.fiber.leave(outer_);
  }
  return thread.result;
}

unsigned Block::active_mask(const void* place) {
  current_->place = place;
  suspend(State::converging);
  return static_cast<unsigned>(current_->result);
}

void Block::yield() { suspend(State::yielded); }

void Block::end(cudaError_t error, std::string why) {
  ended_ = true;
  how_ = {error, std::move(why)};
  current_->fiber.leave(outer_);
  __builtin_unreachable();
}

std::string Block::waiting() const {
  const auto count = [this](State state) {
    return std::to_string(
        std::count_if(threads_.begin(), threads_.end(), [state](const Thread& one) { return one.state == state; }));
  };
  return count(State::at_barrier) + " at __syncthreads(), " + count(State::exchanging) + " at a function of a warp, " +
         count(State::done) + " have ended";
}

}  // namespace simcuda::simt

#define DEVICE_API extern "C" __attribute__((visibility("default")))

DEVICE_API unsigned long long simcudaBarrier(int predicate) {
  return simcuda::simt::Block::running()->barrier(predicate);
}
DEVICE_API unsigned long long simcudaWarpExchange(SimcudaWarp kind, unsigned mask, unsigned long long value,
                                                  unsigned source) {
  return simcuda::simt::Block::running()->exchange(kind, mask, value, source);
}
DEVICE_API unsigned simcudaActiveMask(const void* place) { return simcuda::simt::Block::running()->active_mask(place); }
DEVICE_API void simcudaYield() { simcuda::simt::Block::running()->yield(); }
DEVICE_API void simcudaEndKernel(int error, const char* why) {
  simcuda::simt::Block::running()->end(static_cast<cudaError_t>(error), why);
}
DEVICE_API void simcudaAssertFailed(const char* expression, const char* file, unsigned line, const char* function) {
  const auto text = [](const uint3& at) {
    return "[" + std::to_string(at.x) + "," + std::to_string(at.y) + "," + std::to_string(at.z) + "]";
  };
  simcuda::simt::Block::running()->end(cudaErrorAssert, std::string(file) + ":" + std::to_string(line) + ": " +
                                                            function + ": block: " + text(simcudaBlockIdx) +
                                                            ", thread: " + text(simcudaThreadIdx) + " Assertion `" +
                                                            expression + "` failed.");
}
