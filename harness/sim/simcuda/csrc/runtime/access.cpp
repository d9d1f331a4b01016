#include "access.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>

#include "device.h"
#include "pages.h"
#include "races.h"
#include "rights.h"

namespace simcuda {

namespace {

// A signal handler reads the ranges, so without a lock. The machine has one arena per device, and torch reserves one
// range per stream and size. A range that does not fit into the array is not watched.
struct Range {
  std::atomic<char*> base{nullptr};
  std::atomic<std::size_t> size{0};
  std::atomic<Device*> owner{nullptr};
};
std::array<Range, 4096> ranges;
std::atomic<std::size_t> used{0};
std::mutex mutex;

thread_local Device* working = nullptr;
thread_local bool of_the_program = false;
thread_local FaultExit* fault_exit = nullptr;
struct sigaction before, before_bus, before_division;

// After a return, the access is repeated and reads zeros: the work completes, and its device has failed.
bool served(const siginfo_t& info, bool write) {
  if (races::serve_access(info.si_addr, write, working != nullptr)) return true;
  if (working == nullptr && of_the_program) return false;
  char* const address = static_cast<char*>(info.si_addr);
  const std::size_t count = used.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    char* const base = ranges[i].base.load(std::memory_order_acquire);
    const std::size_t size = ranges[i].size.load(std::memory_order_acquire);
    if (base == nullptr || address < base || address >= base + size) continue;
    // Arenas and reserved ranges begin and end at a multiple of 2 MiB.
    char* const page = address - reinterpret_cast<std::uintptr_t>(address) % huge_page_size;
    if (mprotect(page, huge_page_size, PROT_READ | PROT_WRITE) != 0) return false;
    Device* const device = working != nullptr ? working : ranges[i].owner.load(std::memory_order_acquire);
    device->fail(cudaErrorIllegalAddress, "work used an address that has no memory");
    return true;
  }
  return false;
}

// The program itself uses device memory. Runs outside of the handler, on the stack of the access: the handler's own may
// be too small for Python's frames.
thread_local bool host_writes = false;
[[noreturn]] void end_by_host_access() {
  races::report_host_access(host_writes);
  sigaction(SIGSEGV, &before, nullptr);
  raise(SIGSEGV);
  std::abort();
}

// Whether the access that failed was a write. Where the processor's word is not known, it counts as a read.
bool is_write(const void* context) {
#if defined(__x86_64__)
  constexpr greg_t write = 2;
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & write) != 0;
#else
  return false;
#endif
}

}  // namespace

bool leave_by_exit(int signal, void* context) {
  char* const top = fault_exit != nullptr ? fault_exit->stack_() : nullptr;
  if (top == nullptr) return false;
#if defined(__x86_64__)
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  registers[REG_RDI] = signal;
  registers[REG_RSP] = reinterpret_cast<greg_t>(top) - 8;  // as after a call
  registers[REG_RIP] = reinterpret_cast<greg_t>(fault_exit->function_);
  return true;
#else
  return false;
#endif
}

namespace {

// Makes the thread leave the handler for `end_by_host_access`, as if the instruction had called it.
bool leave_for_report(void* context) {
#if defined(__x86_64__)
  constexpr greg_t red_zone = 128;
  host_writes = is_write(context);
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  registers[REG_RSP] = (registers[REG_RSP] - red_zone) / 16 * 16 - 8;
  *reinterpret_cast<greg_t*>(registers[REG_RSP]) = registers[REG_RIP];
  registers[REG_RIP] = reinterpret_cast<greg_t>(&end_by_host_access);
  return true;
#else
  return false;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (signal == SIGSEGV && is_refused(*info) && leave_for_report(context)) return;
  if (signal == SIGSEGV && served(*info, is_write(context))) return;
  if (leave_by_exit(signal, context)) return;
  // For any other fault, restores the previous handler, which the repeated access then reaches.
  sigaction(signal, signal == SIGSEGV ? &before : signal == SIGBUS ? &before_bus : &before_division, nullptr);
}

void handle(int signal, struct sigaction& previous) {
  struct sigaction action{};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, &previous);
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] { handle(SIGSEGV, before); });
}

}  // namespace

FaultExit::FaultExit(void (*function)(int), char* (*stack)())
    : function_(function), stack_(stack), before_(fault_exit) {
  install();
  static std::once_flag once;
  std::call_once(once, [] {
    handle(SIGBUS, before_bus);
    handle(SIGFPE, before_division);
  });
  fault_exit = this;
}

FaultExit::~FaultExit() { fault_exit = before_; }

void watch_accesses(char* base, std::size_t size, Device& owner) {
  install();
  const std::lock_guard lock(mutex);
  const std::size_t count = used.load(std::memory_order_relaxed);
  std::size_t place = 0;
  while (place < count && ranges[place].base.load(std::memory_order_relaxed) != nullptr) ++place;
  if (place == ranges.size()) return;
  ranges[place].size.store(size, std::memory_order_release);
  ranges[place].owner.store(&owner, std::memory_order_release);
  ranges[place].base.store(base, std::memory_order_release);
  if (place == count) used.store(count + 1, std::memory_order_release);
}

void unwatch_accesses(char* base) {
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < used.load(std::memory_order_relaxed); ++i) {
    if (ranges[i].base.load(std::memory_order_relaxed) == base)
      ranges[i].base.store(nullptr, std::memory_order_release);
  }
}

void own_accesses(char* base, Device& owner) {
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < used.load(std::memory_order_relaxed); ++i) {
    if (ranges[i].base.load(std::memory_order_relaxed) == base) {
      ranges[i].owner.store(&owner, std::memory_order_release);
    }
  }
}

void note_host_thread() noexcept { of_the_program = true; }

WorkScope::WorkScope(Device& device) : before_(working) { working = &device; }
WorkScope::~WorkScope() { working = before_; }

}  // namespace simcuda
