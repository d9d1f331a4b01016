#include "front.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/native/cuda/Resize.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <simcuda.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "philox.h"
#include "random.h"
#include "sites.h"

namespace operators {
namespace {

// Returns how far a launch advances a generator: `calc_execution_policy` in ATen/native/cuda/DistributionTemplates.h.
std::uint64_t numbers_for(std::int64_t elements, const Stream& stream) {
  constexpr std::int64_t threads = 256, per_thread = 4, per_call = 4;
  int processors = 0, resident = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, stream.device()));
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&resident, cudaDevAttrMaxThreadsPerMultiProcessor, stream.device()));
  const std::int64_t wanted = (std::max<std::int64_t>(elements, 1) + threads - 1) / threads;
  const std::int64_t blocks =
      std::max<std::int64_t>(std::min(wanted, std::int64_t{processors} * (resident / threads)), 1);
  return static_cast<std::uint64_t>(((std::max<std::int64_t>(elements, 1) - 1) / (threads * blocks * per_thread) + 1) *
                                    per_call);
}

}  // namespace

void Accesses::add(const at::Tensor& tensor, bool write) {
  if (!simcuda::sites::wanted() || !tensor.defined() || !tensor.is_cuda() || tensor.numel() == 0) {
    return;
  }
  // Dimensions from the innermost one in memory. Dense ones are part of a run.
  c10::SmallVector<std::pair<std::size_t, std::size_t>, 6> dimensions;  // bytes from one element to the next, size
  const auto item = static_cast<std::size_t>(tensor.element_size());
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1 && tensor.stride(i) > 0) {
      dimensions.emplace_back(item * static_cast<std::size_t>(tensor.stride(i)),
                              static_cast<std::size_t>(tensor.size(i)));
    }
  }
  std::sort(dimensions.begin(), dimensions.end());
  std::size_t run = item, dense = 0;
  while (dense < dimensions.size() && dimensions[dense].first <= run) {
    run = dimensions[dense].first * (dimensions[dense].second - 1) + run;
    ++dense;
  }
  // Only the first runs of a tensor with many gaps are listed.
  constexpr std::size_t most = 1024;
  c10::SmallVector<std::size_t, 6> place(dimensions.size(), 0);
  const char* address = static_cast<const char*>(tensor.const_data_ptr());
  for (std::size_t made = 0; made < most; ++made) {
    runs_.push_back({address, run, write, static_cast<std::uint32_t>(item)});
    std::size_t i = dense;
    for (; i < dimensions.size(); ++i) {
      address += dimensions[i].first;
      if (++place[i] < dimensions[i].second) {
        break;
      }
      address -= dimensions[i].first * dimensions[i].second;
      place[i] = 0;
    }
    if (i == dimensions.size()) {
      return;
    }
  }
  if (write) {
    runs_.push_back({nullptr, 0, true});
  }
}

void Stream::launch(const char* name, std::function<void()> work, const Accesses& accesses) const {
  const c10::cuda::CUDAGuard guard(stream_.device());  // the default stream's handle does not identify the device
  // The runtime prints an error as one line, without torch's stack.
  std::function<void()> brief = [work = std::move(work)] {
    try {
      work();
    } catch (const c10::Error& error) {
      throw std::runtime_error(error.what_without_backtrace());
    }
  };
  if (simcuda::sites::wanted()) {
    simcudaDeclare(accesses.runs_.data(), accesses.runs_.size());
  }
  const auto status = static_cast<cudaError_t>(simcudaLaunch(stream_.stream(), name, &brief));
  if (status != cudaSuccess) {
    C10_CUDA_CHECK(status);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();  // as after torch's launches: this also raises an error that an earlier call left
}

void Stream::synchronize() const {
  const c10::cuda::CUDAGuard guard(stream_.device());
  C10_CUDA_CHECK(cudaStreamSynchronize(stream_.stream()));
}

bool Stream::capturing() const {
  const c10::cuda::CUDAGuard guard(stream_.device());
  return simcudaIsCapturing(stream_.stream()) != 0;
}

void Stream::refuse(const std::string& why) const {
  const c10::cuda::CUDAGuard guard(stream_.device());
  simcudaInvalidateCapture(stream_.stream(), why.c_str());
  constexpr cudaError_t status = cudaErrorStreamCaptureUnsupported;
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, status,
                              std::string("CUDA error: ") + cudaGetErrorString(status) + "\n" + why);
}

Stream current_stream(c10::DeviceIndex device) { return Stream(c10::cuda::getCurrentCUDAStream(device)); }

at::Tensor make_strided(c10::DeviceIndex device, at::IntArrayRef sizes, at::IntArrayRef strides,
                        c10::ScalarType dtype) {
  return at::Tensor(at::detail::empty_strided_cuda(sizes, strides, dtype, c10::Device(kDevice, device)));
}

c10::DataPtr on_host(const c10::Storage& storage) {
  if (simcudaGuardsMemory() == 0) {
    return {storage.mutable_data(), c10::Device(c10::kCPU)};
  }
  c10::DataPtr copy = c10::GetAllocator(c10::kCPU)->allocate(storage.nbytes());
  simcudaReadMemory(copy.get(), storage.data(), storage.nbytes());
  return copy;
}

void resize_to(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const std::size_t bytes = at::detail::computeStorageNbytes(sizes, strides, tensor.element_size(),
                                                             static_cast<std::size_t>(tensor.storage_offset()));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  if (tensor.numel() > 0 && bytes > tensor.storage().nbytes()) {
    const c10::cuda::CUDAGuard guard(tensor.device());
    at::native::resize_bytes_cuda(tensor.storage().unsafeGetStorageImpl(), bytes);
  }
}

std::function<at::Generator()> draw(const std::optional<at::Generator>& generator, const Stream& stream,
                                    std::int64_t elements) {
  const c10::cuda::CUDAGuard guard(c10::Device(kDevice, stream.device()));
  const auto state = simcuda::take_numbers(generator, stream.device(), numbers_for(elements, stream));
  return [state] {
    const auto [seed, place] = simcuda::unpack(state);
    return cpu_generator(seed, place);
  };
}

}  // namespace operators
