// Random numbers equal to a GPU's: those that torch's CUDA kernels draw for a seed and an offset.
//
// Each thread of such a kernel has its own sequence of Philox4x32-10, and takes four numbers from it at a time.
// ATen/native/cuda/DistributionTemplates.h assigns elements to threads; cuRAND's headers convert the numbers. Products
// and sums are fused, as in CUDA's code. The last bits of float32 normals differ, since a GPU has its own instructions
// for sine and cosine.
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/OpMathType.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/TransformationHelper.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/TensorIterator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "front.h"
#include "launch.h"
#include "own.h"
#include "philox.h"

namespace simcuda {
namespace {

using at::TensorIteratorBase;
using Generator = std::optional<at::Generator>;

// The numbers that a thread takes at a time.
using Numbers = std::array<std::uint32_t, 4>;

// cuRAND's uniform numbers, in (0, 1]. A float64 takes two numbers.
constexpr float kStep = 2.3283064e-10f, kCircleStep = kStep * 6.2831855f;
constexpr double kFineStep = 1.1102230246251565e-16;

float unit(std::uint32_t x) { return std::fma(static_cast<float>(x), kStep, kStep / 2); }
double unit(std::uint32_t x, std::uint32_t y) {
  const std::uint64_t z = x ^ (static_cast<std::uint64_t>(y) << 21);
  return std::fma(static_cast<double>(z), kFineStep, kFineStep / 2);
}

// The number of elements made from a thread's four numbers, and the element at one of these positions.
struct Words {
  using Value = std::uint32_t;
  static constexpr int kElements = 4;
  static Value at(const Numbers& numbers, int place) { return numbers[place]; }
};
struct LongWords {
  using Value = std::uint64_t;
  static constexpr int kElements = 2;
  static Value at(const Numbers& numbers, int place) {
    return (static_cast<Value>(numbers[2 * place]) << 32) | numbers[2 * place + 1];
  }
};
template <typename Number>
struct Uniform {
  using Value = float;
  static constexpr int kElements = 4;
  static Value at(const Numbers& numbers, int place) { return unit(numbers[place]); }
};
template <>
struct Uniform<double> {
  using Value = double;
  static constexpr int kElements = 2;
  static Value at(const Numbers& numbers, int place) { return unit(numbers[2 * place], numbers[2 * place + 1]); }
};
// Box-Muller: the first of two numbers gives the distance, the second the angle.
template <typename Number>
struct Normal {
  using Value = float;
  static constexpr int kElements = 4;
  static Value at(const Numbers& numbers, int place) {
    const std::uint32_t x = numbers[place & 2], y = numbers[(place & 2) + 1];
    const float distance = std::sqrt(-2.0f * std::log(unit(x)));
    const float angle = std::fma(static_cast<float>(y), kCircleStep, kCircleStep / 2);
    return (place % 2 == 0 ? std::sin(angle) : std::cos(angle)) * distance;
  }
};
template <>
struct Normal<double> {
  using Value = double;
  static constexpr int kElements = 2;
  static Value at(const Numbers& numbers, int place) {
    const double distance = std::sqrt(-2.0 * std::log(unit(numbers[0], numbers[1])));
    const std::uint64_t z = numbers[2] ^ (static_cast<std::uint64_t>(numbers[3]) << 21);
    const double angle = c10::pi<double> * std::fma(static_cast<double>(z), kFineStep * 2, kFineStep);
    return (place == 0 ? std::sin(angle) : std::cos(angle)) * distance;
  }
};

// The number of threads of a launch for that many elements, and the generator's advance.
struct Layout {
  Layout(std::int64_t elements, int per_thread, c10::DeviceIndex device) {
    constexpr std::int64_t block = 256, per_call = 4;
    int processors = 0, resident = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&resident, cudaDevAttrMaxThreadsPerMultiProcessor, device));
    threads = block * std::min((elements + block - 1) / block, processors * (resident / block));
    numbers = static_cast<std::uint64_t>((elements - 1) / (threads * per_thread) + 1) * per_call;
  }
  std::int64_t threads = 0;
  std::uint64_t numbers = 0;
};

// The addresses of the elements in the kernel's order, which is the order of memory for a dense tensor.
struct Places {
  explicit Places(TensorIteratorBase& iterator)
      : data(static_cast<char*>(iterator.data_ptr(0))), sizes(iterator.shape()), strides(iterator.strides(0)) {}
  char* of(std::int64_t element) const {
    if (sizes.size() == 1) {
      return data + element * strides[0];  // most tensors; divisions take longer than drawing a number
    }
    char* place = data;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      place += element % sizes[i] * strides[i];
      element /= sizes[i];
    }
    return place;
  }
  char* data;
  c10::DimVector sizes, strides;  // strides in bytes
};

// Launches work that sets each element to `change` of its random number.
template <typename Element, typename Drawn, typename Change>
void fill(TensorIteratorBase& iterator, const Generator& generator, const char* name, Change change) {
  const c10::Device device = iterator.device(0);
  const c10::cuda::CUDAGuard guard(device);
  const std::int64_t elements = iterator.numel();
  const Layout layout(elements, Drawn::kElements, device.index());
  const auto state = take_numbers(generator, device.index(), layout.numbers);
  operators::Accesses accesses;
  accesses.write(iterator.tensor(0));
  operators::enqueue(
      operators::current_stream(device.index()), name,
      [state, elements, threads = layout.threads, places = Places(iterator), change] {
        const auto [seed, offset] = unpack(state);
        std::uint64_t call = offset / 4;
        for (std::int64_t first = 0; first < elements; first += threads * Drawn::kElements, ++call) {
          for (std::int64_t thread = 0; thread < std::min(threads, elements - first); ++thread) {
            at::Philox4_32 engine(seed, static_cast<std::uint64_t>(thread), call);
            const Numbers numbers{engine(), engine(), engine(), engine()};
            for (int place = 0; place < Drawn::kElements; ++place) {
              const std::int64_t element = first + thread + place * threads;
              if (element < elements) {
                *reinterpret_cast<Element*>(places.of(element)) = change(Drawn::at(numbers, place));
              }
            }
          }
        }
      },
      accesses);
}

// The kernels that torch's templates call after their checks.
template <typename>
struct UniformKernel {
  void operator()(TensorIteratorBase& iterator, double from_given, double to_given, const Generator& generator) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iterator.dtype(), "uniform_kernel_cuda", [&] {
      using Wide = at::opmath_type<scalar_t>;
      const auto from = static_cast<scalar_t>(from_given), to = static_cast<scalar_t>(to_given);
      const auto range = static_cast<Wide>(to - from);
      fill<scalar_t, Uniform<scalar_t>>(iterator, generator, "aten::uniform_", [range, from, to](Wide number) {
        const auto value = static_cast<scalar_t>(std::fma(number, range, static_cast<Wide>(from)));
        return value == to ? from : value;  // [0, 1) instead of (0, 1]
      });
    });
  }
};

template <typename>
struct NormalKernel {
  void operator()(const at::TensorBase& self, double mean_given, double std_given, const Generator& generator) {
    auto iterator = at::TensorIterator::borrowing_nullary_op(self);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iterator.dtype(), "normal_kernel_cuda", [&] {
      using Wide = at::opmath_type<scalar_t>;
      const auto mean = static_cast<Wide>(mean_given), std = static_cast<Wide>(std_given);
      fill<scalar_t, Normal<scalar_t>>(iterator, generator, "aten::normal_", [mean, std](Wide number) {
        return static_cast<scalar_t>(std::fma(number, std, mean));
      });
    });
  }
};

template <typename>
struct BernoulliKernel {
  void operator()(const at::TensorBase& self, double p, const Generator& generator) {
    auto iterator = at::TensorIterator::borrowing_nullary_op(self);
    AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, iterator.dtype(), "bernoulli_scalar_cuda_", [&] {
      fill<scalar_t, Uniform<scalar_t>>(iterator, generator, "aten::bernoulli_", [p](auto number) {
        return static_cast<scalar_t>(number < static_cast<decltype(number)>(p));
      });
    });
  }
};

template <typename>
struct RandomKernel {
  void operator()(TensorIteratorBase& iterator, const Generator& generator) {
    AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, iterator.dtype(), "random_kernel_cuda", [&] {
      constexpr bool wide = std::is_same_v<scalar_t, double> || std::is_same_v<scalar_t, std::int64_t>;
      fill<scalar_t, std::conditional_t<wide, LongWords, Words>>(iterator, generator, "aten::random_", [](auto number) {
        return at::transformation::uniform_int<scalar_t>(number);
      });
    });
  }
};

template <typename>
struct RandomRangeKernel {
  void operator()(TensorIteratorBase& iterator, std::uint64_t range, std::int64_t base, const Generator& generator) {
    AT_DISPATCH_V2(iterator.dtype(), "random_from_to_kernel_cuda", AT_WRAP([&] {
                     const auto change = [range, base](auto number) {
                       return at::transformation::uniform_int_from_to<scalar_t>(number, range, base);
                     };
                     if (range >= std::uint64_t{1} << 28) {
                       fill<scalar_t, LongWords>(iterator, generator, "aten::random_", change);
                     } else {
                       fill<scalar_t, Words>(iterator, generator, "aten::random_", change);
                     }
                   }),
                   AT_EXPAND(AT_ALL_TYPES), at::kBool, at::kHalf, at::kBFloat16,
                   AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
  }
  // For the whole range of int64.
  void operator()(TensorIteratorBase& iterator, const Generator& generator) {
    AT_DISPATCH_ALL_TYPES_AND(at::kBFloat16, iterator.dtype(), "random_full_64_bits_range_kernel_cuda", [&] {
      constexpr bool served = std::is_same_v<scalar_t, std::int64_t> || std::is_floating_point_v<scalar_t> ||
                              std::is_same_v<scalar_t, at::BFloat16>;
      TORCH_CHECK(served, "random_full_64_bits_range_kernel_cuda handles only int64, double, float and bfloat16");
      fill<scalar_t, LongWords>(iterator, generator, "aten::random_", [](std::uint64_t number) {
        return at::transformation::uniform_int_full_range<scalar_t>(number);
      });
    });
  }
};

namespace templates = at::native::templates;
using at::CUDAGeneratorImpl;

at::Tensor& uniform_(at::Tensor& self, double from, double to, Generator generator) {
  return templates::uniform_impl_<UniformKernel, CUDAGeneratorImpl>(self, from, to, std::move(generator));
}
at::Tensor& normal_(at::Tensor& self, double mean, double std, Generator generator) {
  return templates::normal_impl_<NormalKernel, CUDAGeneratorImpl>(self, mean, std, std::move(generator));
}
at::Tensor& bernoulli_(at::Tensor& self, double p, Generator generator) {
  return templates::bernoulli_impl_<BernoulliKernel, CUDAGeneratorImpl>(self, p, std::move(generator));
}
at::Tensor& random_(at::Tensor& self, Generator generator) {
  return templates::random_impl<RandomKernel, CUDAGeneratorImpl>(self, std::move(generator));
}
at::Tensor& random_below_(at::Tensor& self, std::int64_t to, Generator generator) {
  return templates::random_from_to_impl<RandomRangeKernel, CUDAGeneratorImpl>(self, 0, to, std::move(generator));
}
at::Tensor& random_from_(at::Tensor& self, std::int64_t from, std::optional<std::int64_t> to, Generator generator) {
  return templates::random_from_to_impl<RandomRangeKernel, CUDAGeneratorImpl>(self, from, to, std::move(generator));
}

}  // namespace

void add_random_numbers(Registrar& registrar) {
  registrar.composed("uniform_", &uniform_);
  registrar.composed("normal_", &normal_);
  registrar.composed("bernoulli_.float", &bernoulli_);
  registrar.composed("random_", &random_);
  registrar.composed("random_.to", &random_below_);
  registrar.composed("random_.from", &random_from_);
}

}  // namespace simcuda
