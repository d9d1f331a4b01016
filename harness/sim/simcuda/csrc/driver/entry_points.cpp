// Looks up functions by name and by the version of CUDA that a program was written for. CUDA Driver API, "Driver Entry
// Point Access".
//
// cuda.h is not included: it declares the functions with their arguments, which do not matter in the table.

#include <algorithm>
#include <string_view>

#define DRIVER_API extern "C" __attribute__((visibility("default")))

DRIVER_API int cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags,
                                   int* status);
DRIVER_API int cuGetProcAddress(const char* symbol, void** function, int version, unsigned long long flags);

#define ENTRY(name, version, function) extern "C" int function();
#include "entry_points.def"
#undef ENTRY

namespace {

constexpr int success = 0, invalid_value = 1, not_found = 500;              // of CUresult
constexpr int found = 0, symbol_not_found = 1, version_not_sufficient = 2;  // of CUdriverProcAddressQueryResult
constexpr unsigned long long legacy_stream = 1, per_thread_stream = 2;

struct Entry {
  std::string_view name;
  int version;
  void* function;
};

const Entry entries[] = {
#define ENTRY(name, version, function) {#name, version, reinterpret_cast<void*>(&function)},
#include "entry_points.def"
#undef ENTRY
    {"cuGetProcAddress", 11030, reinterpret_cast<void*>(&cuGetProcAddress)},
    {"cuGetProcAddress", 12000, reinterpret_cast<void*>(&cuGetProcAddress_v2)},
};

}  // namespace

// Streams are identified by their handles here, so the per-thread default stream variants are the plain functions.
DRIVER_API int cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags,
                                   int* status) {
  if (symbol == nullptr || function == nullptr || (flags & ~(legacy_stream | per_thread_stream)) != 0) {
    return invalid_value;
  }
  *function = nullptr;
  int result = symbol_not_found, best = -1;
  for (const Entry& entry : entries) {
    if (entry.name != symbol) continue;
    if (entry.version <= version && entry.version > best) {
      best = entry.version;
      *function = entry.function;
    }
    result = best < 0 ? version_not_sufficient : found;
  }
  if (status != nullptr) *status = result;
  return result == found ? success : not_found;
}

DRIVER_API int cuGetProcAddress(const char* symbol, void** function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
