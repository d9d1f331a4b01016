// What nvcc adds to code for the host: launches, and access to variables of devices.
#pragma once

#include <cuda_runtime.h>

namespace simcuda_device {

// What is between <<< and >>>.
struct Configuration {
  Configuration(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr)
      : grid(grid), block(block), shared(shared), stream(stream) {}
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};

// The kernel of one place that launches: a function, which each thread calls with the arguments.
template <typename Function, typename... Arguments>
struct Launched {
  template <unsigned... numbers>
  static void unpack(void** values, Numbers<numbers...>) {
    (*static_cast<Function*>(values[0]))(*static_cast<Arguments*>(values[numbers + 1])...);
  }
  static void call(void** values) { unpack(values, typename NumbersBelow<sizeof...(Arguments)>::Type()); }

  static const SimcudaKernel* kernel(const char* name) {
    static const SimcudaParameter parameters[] = {{sizeof(Function), alignof(Function), 0},
                                                  Parameter<Arguments>::value...};
    // Any size of shared memory: cudaFuncSetAttribute concerns a function, and not the place of a launch.
    static const SimcudaKernel kernel = {name, &call, parameters, sizeof...(Arguments) + 1, 1024, 32, 0, nullptr};
    static const bool added =
        (simcudaAddKernel(&kernel, &kernel),
         cudaFuncSetAttribute(static_cast<const void*>(&kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, 232448),
         true);
    static_cast<void>(added);
    return &kernel;
  }
};

template <typename Function, typename... Arguments>
cudaError_t launch(const char* name, const Configuration& with, Function function, Arguments... arguments) {
  static_assert((__is_trivially_copyable(Arguments) && ... && true), "an argument of a kernel is copied as bytes");
  void* values[] = {&function, &arguments...};
  const void* const kernel = Launched<Function, Arguments...>::kernel(name);
  return cudaLaunchKernel(kernel, with.grid, with.block, values, with.shared, with.stream);
}

template <typename T>
void* variable_address(const T& variable) {
  void* const address = const_cast<void*>(static_cast<const volatile void*>(&variable));
  simcudaAddVariable(address, sizeof(T));
  return address;
}

}  // namespace simcuda_device

// A kernel that is launched by its address.
template <typename... P>
cudaError_t cudaLaunchKernel(void (*function)(P...), dim3 grid, dim3 block, void** arguments, size_t shared = 0,
                             cudaStream_t stream = nullptr) {
  const auto call = [](void (*called)(P...), auto&... values) { called(values...); };
  using Launched = simcuda_device::Launched<decltype(call), void (*)(P...), typename simcuda_device::Value<P>::Type...>;
  void* values[sizeof...(P) + 2] = {const_cast<void*>(static_cast<const void*>(&call)), &function};
  for (unsigned i = 0; i < sizeof...(P); ++i) values[i + 2] = arguments[i];
  return cudaLaunchKernel(static_cast<const void*>(Launched::kernel("kernel")), grid, block, values, shared, stream);
}
template <typename... P>
cudaError_t cudaFuncSetAttribute(void (*)(P...), cudaFuncAttribute attribute, int value) {
  const bool wrong = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && (value < 0 || value > 232448);
  return wrong ? cudaErrorInvalidValue : cudaSuccess;
}
template <typename... P>
cudaError_t cudaFuncSetCacheConfig(void (*)(P...), cudaFuncCache) {
  return cudaSuccess;
}
template <typename... P>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(P...)) {
  using Launched = simcuda_device::Launched<void (*)()>;
  return cudaFuncGetAttributes(attributes, static_cast<const void*>(Launched::kernel("kernel")));
}

template <typename T>
cudaError_t cudaGetSymbolAddress(void** address, const T& symbol) {
  *address = simcuda_device::variable_address(symbol);
  return cudaSuccess;
}
template <typename T>
cudaError_t cudaGetSymbolSize(size_t* size, const T&) {
  *size = sizeof(T);
  return cudaSuccess;
}
template <typename T>
cudaError_t cudaMemcpyToSymbolAsync(const T& symbol, const void* source, size_t bytes, size_t offset = 0,
                                    cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t stream = nullptr) {
  char* const address = static_cast<char*>(simcuda_device::variable_address(symbol));
  return cudaMemcpyAsync(address + offset, source, bytes, kind, stream);
}
template <typename T>
cudaError_t cudaMemcpyToSymbol(const T& symbol, const void* source, size_t bytes, size_t offset = 0,
                               cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
  return cudaMemcpy(static_cast<char*>(simcuda_device::variable_address(symbol)) + offset, source, bytes, kind);
}
template <typename T>
cudaError_t cudaMemcpyFromSymbolAsync(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                      cudaMemcpyKind kind = cudaMemcpyDeviceToHost, cudaStream_t stream = nullptr) {
  const char* const address = static_cast<char*>(simcuda_device::variable_address(symbol));
  return cudaMemcpyAsync(to, address + offset, bytes, kind, stream);
}
template <typename T>
cudaError_t cudaMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                 cudaMemcpyKind kind = cudaMemcpyDeviceToHost) {
  return cudaMemcpy(to, static_cast<char*>(simcuda_device::variable_address(symbol)) + offset, bytes, kind);
}
