// The interface: graph memory.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "call.h"
#include "device.h"
#include "graph_memory.h"

using namespace simcuda;

SIMCUDA_EXPORT cudaError_t cudaDeviceGetGraphMemAttribute(int index, cudaGraphMemAttributeType which, void* value) {
  SIMCUDA_CALL(driver, {
    check(value != nullptr);
    graph_memory_attribute(device(index), which, value);
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceSetGraphMemAttribute(int index, cudaGraphMemAttributeType which, void* value) {
  SIMCUDA_CALL(driver, {
    check(value != nullptr && *static_cast<const std::uint64_t*>(value) == 0);
    reset_graph_memory_attribute(device(index), which);
  });
}

SIMCUDA_EXPORT cudaError_t cudaDeviceGraphMemTrim(int index) {
  SIMCUDA_CALL(driver, { trim_graph_memory(device(index)); });
}
