// Reserved addresses, and memory that is mapped to them.

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "../../include/simcuda_driver.h"
#include "check.h"

namespace simcuda::testing {

namespace {

constexpr std::size_t granularity = 2 * MiB;

CUmemAllocationProp prop(int device = 0) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return prop;
}

void allow(CUdeviceptr address, std::size_t size) {
  CUmemAccessDesc access{};
  access.location = prop().location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  EQUAL(simcudaMemSetAccess(address, size, &access, 1), CUDA_SUCCESS);
}

CUmemGenericAllocationHandle create(std::size_t size) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp wanted = prop();
  EQUAL(simcudaMemCreate(&handle, size, &wanted, 0), CUDA_SUCCESS);
  return handle;
}

CUdeviceptr reserve(std::size_t size) {
  CUdeviceptr address = 0;
  EQUAL(simcudaMemAddressReserve(&address, size, 0, 0, 0), CUDA_SUCCESS);
  return address;
}

}  // namespace

TEST(memory_is_mapped_used_and_unmapped) {
  const CUdeviceptr address = reserve(4 * granularity);
  EQUAL(address % granularity, 0u);
  EQUAL(free_bytes(), at_first);  // addresses use no memory
  const auto first = create(granularity), second = create(granularity);
  EQUAL(free_bytes(), at_first - 2 * granularity);
  EQUAL(simcudaMemMap(address, granularity, 0, first, 0), CUDA_SUCCESS);
  EQUAL(simcudaMemMap(address + granularity, granularity, 0, second, 0), CUDA_SUCCESS);
  allow(address, 2 * granularity);
  void* const memory = reinterpret_cast<void*>(address);
  OK(cudaMemset(memory, 4, 2 * granularity));  // across the boundary of the two mappings
  char value = 0;
  OK(cudaMemcpy(&value, static_cast<char*>(memory) + 2 * granularity - 1, 1, cudaMemcpyDeviceToHost));
  EQUAL(int{value}, 4);
  cudaPointerAttributes attributes;
  OK(cudaPointerGetAttributes(&attributes, memory));
  CHECK(attributes.type == cudaMemoryTypeDevice);
  GIVES(cudaErrorInvalidValue, cudaFree(memory));
  // The mapping keeps the memory alive.
  EQUAL(simcudaMemRelease(first), CUDA_SUCCESS);
  EQUAL(simcudaMemRelease(second), CUDA_SUCCESS);
  EQUAL(free_bytes(), at_first - 2 * granularity);
  EQUAL(simcudaMemAddressFree(address, 4 * granularity), CUDA_ERROR_INVALID_VALUE);  // memory is still mapped there
  EQUAL(simcudaMemUnmap(address, 2 * granularity), CUDA_SUCCESS);
  EQUAL(free_bytes(), at_first);
  OK(cudaPointerGetAttributes(&attributes, memory));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  EQUAL(simcudaMemAddressFree(address, 4 * granularity), CUDA_SUCCESS);
}

TEST(unmapping_waits_for_nothing_and_queued_work_that_uses_the_addresses_fails_its_device) {
  const CUdeviceptr address = reserve(2 * granularity);
  const auto handle = create(granularity);
  EQUAL(simcudaMemMap(address, granularity, 0, handle, 0), CUDA_SUCCESS);
  allow(address, granularity);
  char* const memory = reinterpret_cast<char*>(address);
  const cudaStream_t stream = new_stream();
  bool ran = false;
  Gate gate;
  OK(launch(stream, gate.work()));
  OK(launch(stream, [memory] { std::memset(memory, 1, granularity); }));
  OK(launch(stream, [&ran] { ran = true; }));
  EQUAL(simcudaMemUnmap(address, granularity), CUDA_SUCCESS);
  EQUAL(simcudaMemAddressFree(address, 2 * granularity), CUDA_SUCCESS);
  GIVES(cudaErrorNotReady, cudaStreamQuery(stream));
  gate.open();
  GIVES(cudaErrorIllegalAddress, cudaStreamSynchronize(stream));
  CHECK(!ran);
  OK(cudaSetDevice(1));
  OK(cudaDeviceSynchronize());
}

TEST(threads_of_work_fail_the_device_of_the_memory) {
  const CUdeviceptr address = reserve(granularity);
  const auto handle = create(granularity);
  EQUAL(simcudaMemMap(address, granularity, 0, handle, 0), CUDA_SUCCESS);
  allow(address, granularity);
  char* const memory = reinterpret_cast<char*>(address);
  const cudaStream_t stream = new_stream();
  Gate gate;
  OK(launch(stream, gate.work()));
  OK(launch(stream, [memory] { std::thread([memory] { memory[0] = 1; }).join(); }));
  EQUAL(simcudaMemUnmap(address, granularity), CUDA_SUCCESS);
  OK(cudaSetDevice(1));
  gate.open();
  GIVES(cudaErrorIllegalAddress, cudaStreamSynchronize(stream));
  OK(cudaDeviceSynchronize());
}

TEST(work_finds_what_is_mapped_when_it_runs) {
  const CUdeviceptr address = reserve(granularity);
  const auto first = create(granularity), second = create(granularity);
  EQUAL(simcudaMemMap(address, granularity, 0, first, 0), CUDA_SUCCESS);
  allow(address, granularity);
  char* const memory = reinterpret_cast<char*>(address);
  const cudaStream_t stream = new_stream();
  Gate gate;
  OK(launch(stream, gate.work()));
  OK(launch(stream, [memory] { std::memset(memory, 3, granularity); }));
  EQUAL(simcudaMemUnmap(address, granularity), CUDA_SUCCESS);
  EQUAL(simcudaMemMap(address, granularity, 0, second, 0), CUDA_SUCCESS);
  allow(address, granularity);
  gate.open();
  OK(cudaStreamSynchronize(stream));
  EQUAL(int{memory[granularity - 1]}, 3);
}

TEST(memory_that_is_mapped_twice_is_one) {
  const CUdeviceptr one = reserve(granularity), two = reserve(granularity);
  const auto handle = create(granularity);
  EQUAL(simcudaMemMap(one, granularity, 0, handle, 0), CUDA_SUCCESS);
  EQUAL(simcudaMemMap(two, granularity, 0, handle, 0), CUDA_SUCCESS);
  allow(one, granularity);
  allow(two, granularity);
  OK(cudaMemset(reinterpret_cast<void*>(one), 6, 1));
  char value = 0;
  OK(cudaMemcpy(&value, reinterpret_cast<void*>(two), 1, cudaMemcpyDeviceToHost));
  EQUAL(int{value}, 6);
}

TEST(what_is_wrong_is_refused) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp wanted = prop();
  EQUAL(simcudaMemCreate(&handle, 1000, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  EQUAL(simcudaMemCreate(&handle, 128 * MiB, &wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
  wanted.location.id = 7;
  EQUAL(simcudaMemCreate(&handle, granularity, &wanted, 0), CUDA_ERROR_INVALID_DEVICE);
  wanted = prop();
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EQUAL(simcudaMemCreate(&handle, granularity, &wanted, 0), CUDA_ERROR_NOT_SUPPORTED);
  const CUdeviceptr address = reserve(granularity);
  handle = create(granularity);
  EQUAL(simcudaMemMap(address, 2 * granularity, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EQUAL(simcudaMemMap(address + 8 * granularity, granularity, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EQUAL(simcudaMemUnmap(address, granularity), CUDA_ERROR_INVALID_VALUE);
  EQUAL(simcudaMemRelease(handle), CUDA_SUCCESS);
  EQUAL(simcudaMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EQUAL(free_bytes(), at_first);
}

TEST(memory_is_exported_and_imported) {
  const auto padding = create(3 * granularity), handle = create(2 * granularity);
  int file = -1;
  EQUAL(simcudaMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  EQUAL(simcudaMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        CUDA_SUCCESS);
  close(file);
  const CUdeviceptr one = reserve(2 * granularity), two = reserve(2 * granularity);
  EQUAL(simcudaMemMap(one, 2 * granularity, 0, handle, 0), CUDA_SUCCESS);
  EQUAL(simcudaMemMap(two, 2 * granularity, 0, imported, 0), CUDA_SUCCESS);
  allow(one, 2 * granularity);
  allow(two, 2 * granularity);
  std::memset(reinterpret_cast<void*>(one + granularity), 8, 1);
  EQUAL(int{*reinterpret_cast<char*>(two + granularity)}, 8);
  // Exported memory is not reused for another allocation.
  EQUAL(simcudaMemUnmap(one, 2 * granularity), CUDA_SUCCESS);
  EQUAL(simcudaMemRelease(handle), CUDA_SUCCESS);
  void* other = nullptr;
  OK(cudaMalloc(&other, 2 * granularity));
  OK(cudaMemset(other, 1, 2 * granularity));
  OK(cudaDeviceSynchronize());
  EQUAL(int{*reinterpret_cast<char*>(two)}, 0);
  EQUAL(simcudaMemRelease(padding), CUDA_SUCCESS);
}

TEST(a_mapping_tells_its_memory) {
  const CUdeviceptr address = reserve(granularity);
  const auto handle = create(granularity);
  EQUAL(simcudaMemMap(address, granularity, 0, handle, 0), CUDA_SUCCESS);
  EQUAL(simcudaMemRelease(handle), CUDA_SUCCESS);
  CUmemGenericAllocationHandle retained = 0;
  EQUAL(simcudaMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(address + 5)), CUDA_SUCCESS);
  CUmemAllocationProp of{};
  EQUAL(simcudaMemGetAllocationPropertiesFromHandle(&of, retained), CUDA_SUCCESS);
  EQUAL(of.location.id, 0);
  EQUAL(simcudaMemUnmap(address, granularity), CUDA_SUCCESS);
  EQUAL(free_bytes(), at_first - granularity);
  EQUAL(simcudaMemRelease(retained), CUDA_SUCCESS);
  EQUAL(free_bytes(), at_first);
}

TEST(values_are_written_and_waited_for_in_stream_order) {
  cudaStream_t waits, writes;
  OK(cudaStreamCreateWithFlags(&waits, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&writes, cudaStreamNonBlocking));
  void* memory = nullptr;
  OK(cudaMalloc(&memory, 64));
  OK(cudaMemset(memory, 0, 64));
  OK(cudaDeviceSynchronize());
  EQUAL(simcudaStreamWaitValue(waits, memory, 5, 4, CU_STREAM_WAIT_VALUE_GEQ), CUDA_SUCCESS);
  GIVES(cudaErrorNotReady, cudaStreamQuery(waits));
  EQUAL(simcudaStreamWriteValue(writes, memory, 5, 4), CUDA_SUCCESS);
  OK(cudaStreamSynchronize(waits));
}

}  // namespace simcuda::testing
