#include "kernels.h"

#include <cxxabi.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "allocations.h"
#include "conditions.h"
#include "device.h"
#include "error.h"
#include "process.h"
#include "trace.h"

namespace simcuda {

namespace {

// torch registers about 24,000 functions when it is imported, and a program uses few of them, so they are only recorded
// then.
struct Registered {
  const void* function;
  const char* name;
};

struct VariableEntry {
  std::size_t size;
  std::map<int, void*> addresses;  // by device
};

struct Registry {
  std::mutex mutex;
  std::vector<Registered> noted;
  std::size_t indexed = 0;
  std::unordered_map<const void*, const char*> names;
  std::unordered_map<const void*, std::string> demangled;
  std::unordered_map<const void*, VariableEntry> variables;
  std::set<std::string> reported;
};

Registry& registry() {
  static auto* const registry = new Registry;
  return *registry;
}

constexpr double nanoseconds_per_cycle = 1 / 1.98;

// Reads a simulated kernel's arguments at the launch, and returns the work to run later.
using Maker = Work (*)(void** arguments);

template <typename Value>
Value argument(void** arguments, int place) {
  return *static_cast<Value*>(arguments[place]);
}

Work spin(void** arguments) {
  const auto cycles = static_cast<double>(argument<long long>(arguments, 0));
  const std::chrono::nanoseconds duration(static_cast<long long>(cycles * nanoseconds_per_cycle));
  return [duration] { pool().pause(duration); };
}

Work set_conditional_handle(void** arguments) {
  const auto handle = argument<unsigned long long>(arguments, 0);
  const auto* const value = argument<const bool*>(arguments, 1);
  return [handle, value] { set_condition(handle, *value); };
}

struct Simulated {
  std::string_view part;  // of the demangled name
  const char* name;
  Maker maker;
};

constexpr Simulated simulated[] = {
    {"at::cuda::(anonymous namespace)::spin_kernel(", "spin_kernel", spin},
    {"at::cuda::(anonymous namespace)::set_conditional_handle_kernel(", "set_conditional_handle_kernel",
     set_conditional_handle},
};

}  // namespace

const std::string& kernel_name(const void* function) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (const auto known = all.demangled.find(function); known != all.demangled.end()) return known->second;
  for (; all.indexed < all.noted.size(); ++all.indexed) {
    all.names[all.noted[all.indexed].function] = all.noted[all.indexed].name;
  }
  const auto found = all.names.find(function);
  check(found != all.names.end(), cudaErrorInvalidDeviceFunction);
  int status = 0;
  char* const text = abi::__cxa_demangle(found->second, nullptr, nullptr, &status);
  std::string name = text ? text : found->second;
  std::free(text);
  return all.demangled[function] = std::move(name);
}

std::optional<Operation> kernel_operation(const void* function, dim3 grid, dim3 block, std::size_t shared,
                                          void** arguments) {
  const std::string& name = kernel_name(function);
  count("kernel", name);
  for (const Simulated& one : simulated) {
    if (name.find(one.part) == std::string::npos) continue;
    Operation operation;
    operation.name = one.name;
    operation.work = one.maker(arguments);
    operation.params.kernel.func = const_cast<void*>(function);
    operation.params.kernel.gridDim = grid;
    operation.params.kernel.blockDim = block;
    operation.params.kernel.sharedMemBytes = static_cast<unsigned>(shared);
    return operation;
  }
  Registry& all = registry();
  bool first = false;
  {
    const std::lock_guard lock(all.mutex);
    first = all.reported.insert(name).second;
  }
  if (first || tracing()) std::fprintf(stderr, "[simcuda] a kernel is not simulated: %.500s\n", name.c_str());
  return std::nullopt;
}

Variable find_variable(const void* symbol) {
  Registry& all = registry();
  Device& device = current_device();
  const std::lock_guard lock(all.mutex);
  const auto found = all.variables.find(symbol);
  check(found != all.variables.end(), cudaErrorInvalidSymbol);
  VariableEntry& entry = found->second;
  void*& address = entry.addresses[device.index];
  if (address == nullptr) {
    constexpr std::size_t page = 4096;
    const std::size_t bytes = (entry.size + page - 1) / page * page;
    address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(address != MAP_FAILED, cudaErrorMemoryAllocation);
    Allocation allocation;
    allocation.base = static_cast<char*>(address);
    allocation.size = entry.size;
    allocation.kind = Allocation::Kind::variable;
    allocation.device = &device;
    add_allocation(std::move(allocation));
  }
  return {address, entry.size};
}

void note_function(const void* function, const char* name) {
  const std::lock_guard lock(registry().mutex);
  registry().noted.push_back({function, name});
}

void note_variable(const void* symbol, std::size_t size) {
  const std::lock_guard lock(registry().mutex);
  registry().variables[symbol].size = size;
}

}  // namespace simcuda
