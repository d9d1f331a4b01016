// Sparse tensors. Most of their operators are made of dense ones by torch; those that have kernels of their own are done
// at once, by the CPU.
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "bodies.h"
#include "own.h"

namespace simcuda {
namespace {

constexpr const char* coordinates[] = {
    "add.out", "mul.out", "bmm", "bmm.out", "addmm", "addmm.out", "addmm_", "hspmm", "hspmm.out", "sspaddmm.out",
    "_sparse_sparse_matmul", "_sparse_sum_backward", "_sparse_softmax", "_sparse_softmax_backward_data",
    "_sparse_log_softmax", "_sparse_log_softmax_backward_data", "_coalesce", "index_select", "sparse_mask",
    "_sparse_mask_projection"};
constexpr const char* compressed[] = {"add.out", "addmv.out", "addmm.out", "_sparse_csr_sum.dim_dtype",
                                      "_sparse_csr_prod.dim_dtype", "sparse_sampled_addmm", "sparse_sampled_addmm.out",
                                      "triangular_solve.X"};

// Gives the target what the result on the CPU has.
void assign(const at::Tensor& target, const at::Tensor& result) {
  const at::Tensor moved = result.to(target.device());
  if (target.is_sparse()) {
    at::SparseTensorImpl* impl = at::sparse::get_sparse_impl(target);
    impl->raw_resize_(moved.sparse_dim(), moved.dense_dim(), moved.sizes());
    impl->set_indices_and_values_unsafe(moved._indices(), moved._values());
    impl->set_coalesced(moved.is_coalesced());
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

template <std::size_t count>
void add(c10::DispatchKey key, const char* const (&names)[count]) {
  auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);  // for ever
  for (const char* name : names) {
    if (operators::known(name)) {
      library->impl(name, torch::CppFunction::makeFromBoxedFunction<&by_cpu>());
    }
  }
}

}  // namespace

void add_sparse() {
  add(c10::DispatchKey::SparseCUDA, coordinates);
  add(c10::DispatchKey::SparseCsrCUDA, compressed);
}

}  // namespace simcuda
