// Sparse tensors. torch builds most of their operators from dense ones. Those that have their own kernels run
// synchronously on the CPU, except for sums.
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/copy_sparse_to_sparse.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "bodies.h"
#include "own.h"

namespace simcuda {
namespace {

constexpr const char* coordinates[] = {"mul.out",
                                       "bmm",
                                       "bmm.out",
                                       "addmm",
                                       "addmm.out",
                                       "addmm_",
                                       "hspmm",
                                       "hspmm.out",
                                       "sspaddmm.out",
                                       "_sparse_sparse_matmul",
                                       "_sparse_sum_backward",
                                       "_sparse_softmax",
                                       "_sparse_softmax_backward_data",
                                       "_sparse_log_softmax",
                                       "_sparse_log_softmax_backward_data",
                                       "_coalesce",
                                       "index_select",
                                       "sparse_mask",
                                       "_sparse_mask_projection"};
constexpr const char* compressed[] = {"add.out",
                                      "addmv.out",
                                      "addmm.out",
                                      "_sparse_csr_sum.dim_dtype",
                                      "_sparse_csr_prod.dim_dtype",
                                      "sparse_sampled_addmm",
                                      "sparse_sampled_addmm.out",
                                      "triangular_solve.X"};

// Gives the target these entries, and the sizes of `like`.
void put(const at::Tensor& target, const at::Tensor& like, const at::Tensor& indices, const at::Tensor& values) {
  at::SparseTensorImpl* impl = at::sparse::get_sparse_impl(target);
  impl->raw_resize_(like.sparse_dim(), like.dense_dim(), like.sizes());
  impl->set_indices_and_values_unsafe(indices, values.to(target.scalar_type()));
}

// Copies a result on the CPU to the target.
void assign(const at::Tensor& target, const at::Tensor& result) {
  const at::Tensor moved = result.to(target.device());
  if (target.is_sparse()) {
    put(target, moved, moved._indices(), moved._values());
    target._coalesced_(moved.is_coalesced());
  } else if (target.layout() == c10::kStrided) {
    target.resize_(moved.sizes());
    target.copy_(moved);
  } else {
    target.resize_as_sparse_(moved);
    target.copy_(moved);
  }
}

void by_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t count = schema.arguments().size();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  std::optional<c10::Device> device;
  std::vector<std::pair<at::Tensor, at::Tensor>> written;
  Stack host;
  for (std::size_t i = 0; i < count; ++i) {
    const at::Tensor given = tensor(arguments[i]);
    if (!given.defined()) {
      host.push_back(arguments[i]);
      continue;
    }
    if (given.is_cuda()) {
      device = given.device();
    }
    const at::Tensor copy = given.to(c10::kCPU);
    host.emplace_back(copy);
    const c10::AliasInfo* info = schema.arguments()[i].alias_info();
    if (info != nullptr && info->isWrite()) {
      written.emplace_back(given, copy);
    }
  }
  op.callBoxed(&host);
  for (const auto& [target, copy] : written) {
    assign(target, copy);
  }
  for (const c10::IValue& result : host) {
    at::Tensor given = tensor(result);
    bool returned = false;
    for (const auto& [target, copy] : written) {
      if (given.defined() && given.is_same(copy)) {
        stack->emplace_back(target);
        returned = true;
      }
    }
    if (!returned) {
      stack->push_back(given.defined() && device.has_value() ? c10::IValue(given.to(*device)) : result);
    }
  }
}

// Arguments: self, other, other's factor, output. CUDA concatenates the entries of both, after type promotion; the CPU
// merges them.
void sum(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const Stack a(stack->end() - 4, stack->end());
  const at::Tensor self = tensor(a[0]), other = tensor(a[1]);
  at::Tensor out = tensor(a[3]);
  const bool dense = !self.is_sparse();
  for (const auto& [each, name] : {std::pair(self, "self"), std::pair(other, "other"), std::pair(out, "out")}) {
    TORCH_CHECK(each.is_cuda(), "add: expected '", name, "' to be ", dense ? "a CUDA tensor" : "CUDA", ", but got ",
                dense ? "a CPU tensor" : "CPU");
  }
  if (dense || !other.is_sparse()) {
    by_cpu(op, keys, stack);
    return;
  }
  const at::ScalarType dtype = at::result_type(self, other);
  TORCH_CHECK(at::canCast(dtype, out.scalar_type()), "Can't convert result type ", dtype, " to output ",
              out.scalar_type());
  TORCH_CHECK(self.sizes() == other.sizes(), "add: expected 'self' and 'other' to have same size, but ", self.sizes(),
              " != ", other.sizes());
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  torch::jit::drop(*stack, 4);
  stack->emplace_back(out);
  if (other._nnz() == 0) {
    at::copy_sparse_to_sparse_(out, self);
    return;
  }
  const at::Tensor values = other._values().to(dtype).mul(a[2].toScalar());
  if (self._nnz() == 0) {
    put(out, other, other._indices().clone(), values);
    out._coalesced_(other.is_coalesced());
    return;
  }
  TORCH_CHECK(at::sparse::is_same_density(self, other),
              "add: expected 'self' and 'other' to have same density, but "
              "'self' has ",
              self.sparse_dim(), " sparse dimensions while 'other' has ", other.sparse_dim(), " sparse dimensions");
  put(out, other, at::cat({self._indices(), other._indices()}, 1), at::cat({self._values().to(dtype), values}));
  if (out._nnz() > out.numel()) {
    assign(out, out.coalesce());
  }
}

torch::Library& library(c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);  // never freed
}

template <std::size_t count>
void add(torch::Library& library, const char* const (&names)[count]) {
  for (const char* name : names) {
    if (operators::known(name)) {
      library.impl(name, torch::CppFunction::makeFromBoxedFunction<&by_cpu>());
    }
  }
}

}  // namespace

void add_sparse() {
  torch::Library& coordinate = library(c10::DispatchKey::SparseCUDA);
  add(coordinate, coordinates);
  coordinate.impl("add.out", torch::CppFunction::makeFromBoxedFunction<&sum>());
  add(library(c10::DispatchKey::SparseCsrCUDA), compressed);
}

}  // namespace simcuda
