#include "attributes.h"

#include <cstdint>
#include <cstring>
#include <mutex>

namespace simcuda::cupti {

namespace {

struct Attribute {
  int number;
  std::size_t size;
  std::uint64_t value;  // initially the default
};

std::mutex mutex;
// The last two, PER_THREAD_ACTIVITY_BUFFER and DEVICE_BUFFER_SIZE_DEVICE_GRAPHS, came with CUDA 12.
Attribute attributes[] = {
    {CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE, sizeof(std::size_t), 3'200'000},
    {CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE_CDP, sizeof(std::size_t), 8'388'608},
    {CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT, sizeof(std::size_t), 250},
    {CUPTI_ACTIVITY_ATTR_PROFILING_SEMAPHORE_POOL_SIZE, sizeof(std::size_t), 25'000},
    {CUPTI_ACTIVITY_ATTR_PROFILING_SEMAPHORE_POOL_LIMIT, sizeof(std::size_t), 250},
    {CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, sizeof(std::uint8_t), 0},
    {CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_PRE_ALLOCATE_VALUE, sizeof(std::size_t), 3},
    {CUPTI_ACTIVITY_ATTR_PROFILING_SEMAPHORE_PRE_ALLOCATE_VALUE, sizeof(std::size_t), 3},
    {CUPTI_ACTIVITY_ATTR_MEM_ALLOCATION_TYPE_HOST_PINNED, sizeof(std::uint8_t), 0},
    {9, sizeof(std::uint8_t), 1},
    {10, sizeof(std::size_t), 16'777'216},
};

Attribute* find(CUpti_ActivityAttribute number) {
  for (Attribute& one : attributes) {
    if (one.number == static_cast<int>(number)) return &one;
  }
  return nullptr;
}

}  // namespace

// Values are little-endian, as are all machines that torch's wheels with CUDA run on.
CUptiResult get_attribute(CUpti_ActivityAttribute number, std::size_t* size, void* value) {
  const Attribute* const attribute = find(number);
  if (attribute == nullptr || size == nullptr || value == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  if (*size < attribute->size) return CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT;
  const std::lock_guard lock(mutex);
  std::memcpy(value, &attribute->value, attribute->size);
  *size = attribute->size;
  return CUPTI_SUCCESS;
}

CUptiResult set_attribute(CUpti_ActivityAttribute number, std::size_t* size, const void* value) {
  Attribute* const attribute = find(number);
  if (attribute == nullptr || size == nullptr || value == nullptr) return CUPTI_ERROR_INVALID_PARAMETER;
  if (*size < attribute->size) return CUPTI_ERROR_PARAMETER_SIZE_NOT_SUFFICIENT;
  const std::lock_guard lock(mutex);
  attribute->value = 0;
  std::memcpy(&attribute->value, value, attribute->size);
  return CUPTI_SUCCESS;
}

}  // namespace simcuda::cupti
