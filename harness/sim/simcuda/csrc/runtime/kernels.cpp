#include "kernels.h"

#include <cxxabi.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../simt/block.h"
#include "../simt/grid.h"
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

// A kernel whose code was compiled for the host.
struct Compiled {
  const SimcudaKernel* kernel;
  const std::string* name;
  KernelLimits limits;
  unsigned most_shared;  // static and dynamic, for each block
};

constexpr unsigned shared_by_default = 48 << 10, shared_at_most = 227 << 10;

struct Registry {
  std::mutex mutex;
  std::vector<Registered> noted;
  std::size_t indexed = 0;
  std::unordered_map<const void*, const char*> names;
  std::unordered_map<const void*, std::string> demangled;
  std::unordered_map<const void*, VariableEntry> variables;
  std::unordered_map<const void*, Compiled> compiled;
  std::set<std::string> kept_names;  // of compiled kernels; records of launches refer to them
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

std::string demangle(const char* name) {
  int status = 0;
  if (std::strncmp(name, "_Z", 2) != 0) return name;  // names of types are demangled too: `f` is float
  char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string demangled = text ? text : name;
  std::free(text);
  return demangled;
}

std::optional<Compiled> find_compiled(const void* function) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.compiled.find(function);
  if (found == all.compiled.end()) return std::nullopt;
  return found->second;
}

void set_params(Operation& operation, const void* function, dim3 grid, dim3 block, std::size_t shared) {
  operation.params.kernel.func = const_cast<void*>(function);
  operation.params.kernel.gridDim = grid;
  operation.params.kernel.blockDim = block;
  operation.params.kernel.sharedMemBytes = static_cast<unsigned>(shared);
}

// Copies of the arguments of one launch.
struct Arguments {
  explicit Arguments(const SimcudaKernel& kernel, void** values) {
    std::size_t bytes = 0;
    std::vector<std::size_t> places;
    for (unsigned i = 0; i < kernel.count; ++i) {
      const auto [size, alignment, written] = kernel.parameters[i];
      bytes = (bytes + alignment - 1) / alignment * alignment;
      places.push_back(bytes);
      bytes += size;
    }
    memory = std::make_unique<std::max_align_t[]>(bytes / sizeof(std::max_align_t) + 1);
    for (unsigned i = 0; i < kernel.count; ++i) {
      pointers.push_back(reinterpret_cast<char*>(memory.get()) + places[i]);
      std::memcpy(pointers.back(), values[i], kernel.parameters[i].size);
    }
  }

  std::unique_ptr<std::max_align_t[]> memory;
  std::vector<void*> pointers;
};

// Which memory a kernel uses is not known. It is taken to use the first byte of each tensor whose address is among its
// arguments: two kernels that use two parts of one tensor are no race.
std::vector<races::Access> accesses_of(const SimcudaKernel& kernel, const Arguments& arguments) {
  std::vector<races::Access> accesses;
  if (!races::checks_order()) return accesses;
  for (unsigned i = 0; i < kernel.count; ++i) {
    const SimcudaParameter& parameter = kernel.parameters[i];
    for (unsigned word = 0; word < 64 && (word + 1) * sizeof(void*) <= parameter.size; ++word) {
      const void* address = nullptr;
      std::memcpy(&address, static_cast<const char*>(arguments.pointers[i]) + word * sizeof address, sizeof address);
      if (races::in_block(address)) accesses.push_back({address, 1, (parameter.written >> word & 1) != 0});
    }
  }
  return accesses;
}

Operation compiled_operation(const Compiled& compiled, dim3 grid, dim3 block, std::size_t shared, void** values) {
  const SimcudaKernel& kernel = *compiled.kernel;
  const KernelLimits& limits = compiled.limits;
  if (kernel.refusal != nullptr) {
    std::fprintf(stderr, "Simulated CUDA: the kernel %s is refused (cudaErrorNotSupported): %s\n",
                 compiled.name->c_str(), kernel.refusal);
    throw Error(cudaErrorNotSupported);
  }
  check(block.x * block.y * block.z <= limits.threads, cudaErrorLaunchOutOfResources);
  check(limits.static_shared + shared <= compiled.most_shared);
  check(kernel.count == 0 || values != nullptr);
  auto arguments = std::make_shared<Arguments>(kernel, values);
  Operation operation;
  operation.name = compiled.name->c_str();
  operation.unknown = true;
  operation.accesses = accesses_of(kernel, *arguments);
  Device& device = current_device();
  operation.work = [&kernel, arguments, grid, block, &device, name = compiled.name] {
    try {
      simt::run_grid(kernel, grid, block, arguments->pointers.data(), pool().order() == work::Order::reversed,
                     [&device] { return device.error() != cudaSuccess || pool().abandoned(); });
    } catch (const simt::KernelEnded& ended) {
      device.fail(ended.error, ("kernel " + *name + ": " + ended.why).c_str());
    }
  };
  return operation;
}

}  // namespace

const std::string& kernel_name(const void* function) {
  if (const auto compiled = find_compiled(function)) return *compiled->name;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (const auto known = all.demangled.find(function); known != all.demangled.end()) return known->second;
  for (; all.indexed < all.noted.size(); ++all.indexed) {
    all.names[all.noted[all.indexed].function] = all.noted[all.indexed].name;
  }
  const auto found = all.names.find(function);
  check(found != all.names.end(), cudaErrorInvalidDeviceFunction);
  return all.demangled[function] = demangle(found->second);
}

KernelLimits kernel_limits(const void* function) {
  if (const auto compiled = find_compiled(function)) {
    KernelLimits limits = compiled->limits;
    limits.dynamic_shared = compiled->most_shared - limits.static_shared;
    return limits;
  }
  kernel_name(function);
  KernelLimits limits;
  limits.dynamic_shared = shared_by_default;
  return limits;
}

void set_most_dynamic_shared(const void* function, unsigned bytes) {
  kernel_name(function);
  check(bytes <= shared_at_most);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.compiled.find(function);
  if (found == all.compiled.end()) return;
  const unsigned own = found->second.limits.static_shared;
  check(own + bytes <= shared_at_most);
  found->second.most_shared = std::max(own + bytes, shared_by_default);
}

std::optional<Operation> kernel_operation(const void* function, dim3 grid, dim3 block, std::size_t shared,
                                          void** arguments) {
  const std::string& name = kernel_name(function);
  count("kernel", name);
  if (const auto compiled = find_compiled(function)) {
    Operation operation = compiled_operation(*compiled, grid, block, shared, arguments);
    set_params(operation, function, grid, block, shared);
    return operation;
  }
  for (const Simulated& one : simulated) {
    if (name.find(one.part) == std::string::npos) continue;
    Operation operation;
    operation.name = one.name;
    operation.work = one.maker(arguments);
    set_params(operation, function, grid, block, shared);
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

using namespace simcuda;

#define DEVICE_CODE_API extern "C" __attribute__((visibility("default")))

DEVICE_CODE_API void simcudaAddKernel(const void* handle, const SimcudaKernel* kernel) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  Compiled& compiled = all.compiled[handle];
  compiled.kernel = kernel;
  compiled.name = &*all.kept_names.insert(demangle(kernel->name)).first;
  compiled.limits.threads = kernel->max_threads;
  compiled.limits.registers = kernel->registers;
  compiled.limits.static_shared = kernel->shared;
  compiled.most_shared = std::max(shared_by_default, kernel->shared);
}

DEVICE_CODE_API void simcudaAddVariable(void* address, unsigned long long size) {
  try {
    Allocation allocation;
    allocation.base = static_cast<char*>(address);
    allocation.size = size;
    allocation.kind = Allocation::Kind::variable;
    allocation.device = &current_device();
    add_allocation(std::move(allocation));
  } catch (const Error&) {  // it is known already
  }
}
