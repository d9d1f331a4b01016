// Single operators that only CUDA has.
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tril_indices.h>
#include <ATen/ops/triu_indices.h>
#include <ATen/ops/zeros.h>

#include "bodies.h"
#include "fallback.h"
#include "own.h"
#include "random.h"

namespace simcuda {
namespace {

// Arguments: input, the probability of keeping a value, the generator. The mask is a byte tensor.
void dropout(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor input = tensor(a[0]);
  const double kept = a[1].toDouble();
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kByte));
  if (!a[2].isNone()) {
    mask.bernoulli_(kept, a[2].toGenerator());
  }
  answer(stack, {kept == 0 ? input * 0 : input * mask.to(input.scalar_type()) / kept, mask});
}

// Arguments: input, mask, scale.
void masked_scale(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor input = tensor(a[0]);
  answer(stack, {input * tensor(a[1]).to(input.scalar_type()) * a[2].toDouble()});
}

// Arguments: mask, probability, seed, offset. Callers compare the mask's values with the probability.
void dropout_mask(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor mask = tensor(a[0]);
  if (!mask.is_meta()) {
    mask.uniform_(
        0, 1,
        operators::cpu_generator(static_cast<std::uint64_t>(a[2].toInt()), static_cast<std::uint64_t>(a[3].toInt())));
  }
  answer(stack, {mask});
}

// torch's own kernels for this loss are supported; cuDNN's would compute the same numbers.
void never(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->emplace_back(false);
}

// Arguments: dropout, training, seed, type, layout, device. cuDNN stores a generator's state there; nothing reads it
// here.
void dropout_state(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const c10::IValue device = (*stack)[stack->size() - count + 5];
  torch::jit::drop(*stack, count);
  constexpr std::int64_t bytes = 1 << 20;
  const c10::Device place = device.isNone() ? c10::Device(c10::kCUDA) : device.toDevice();
  stack->emplace_back(at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(place)));
}

// The indices are computed on the host, since they do not depend on values on the device.
template <at::Tensor (*function)(std::int64_t, std::int64_t, std::int64_t, at::TensorOptions)>
void indices(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const Stack a(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  const at::Tensor host = function(a[0].toInt(), a[1].toInt(), a[2].toInt(),
                                   at::TensorOptions().dtype(a[3].isNone() ? at::kLong : a[3].toScalarType()));
  const c10::Device place = a[5].isNone() ? c10::Device(c10::kCUDA) : a[5].toDevice();
  stack->emplace_back(host.to(place, /*non_blocking=*/true));
}
at::Tensor upper(std::int64_t rows, std::int64_t columns, std::int64_t offset, at::TensorOptions options) {
  return at::triu_indices(rows, columns, offset, options);
}
at::Tensor lower(std::int64_t rows, std::int64_t columns, std::int64_t offset, at::TensorOptions options) {
  return at::tril_indices(rows, columns, offset, options);
}

// Arguments: weight, indices, offsets, ..., and as the eighth whether the last offset is the end of the last bag. The
// CPU's kernel differs from CUDA's: it returns the bag of each index only if its own backward needs them, requires one
// type for indices and offsets, and returns no size for the last offset if that is an end.
void embedding_bag(const c10::OperatorHandle& op, Stack* stack) {
  const Stack a = *stack;
  for (std::size_t i : {1, 2}) {
    (*stack)[i] = tensor((*stack)[i]).to(at::kLong);
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const at::Tensor indices = tensor(a[1]), bags = tensor((*stack)[1]);
  if (bags.numel() != indices.numel()) {
    at::Tensor offsets = tensor(a[2]).to(at::kLong);
    if (a[7].toBool()) {
      offsets = offsets.slice(0, 0, offsets.numel() - 1);
    }
    at::Tensor starts = at::zeros({indices.numel() + 1}, at::TensorOptions().dtype(at::kLong));
    starts.index_add_(0, offsets, at::ones_like(offsets));
    (*stack)[1] = (starts.cumsum(0) - 1).slice(0, 0, indices.numel()).to(bags.scalar_type());
  }
  const at::Tensor sizes = tensor((*stack)[2]);
  if (sizes.dim() == 1 && sizes.numel() + 1 == tensor(a[2]).numel()) {
    (*stack)[2] = at::constant_pad_nd(sizes, {0, 1});
  }
}

// Arguments: as for embedding_bag.
void check_bags(Arguments a) {
  const std::int64_t table = tensor(a[0]).dim(), indices = tensor(a[1]).dim(), offsets = tensor(a[2]).dim();
  TORCH_CHECK(indices == 1 || indices == 2, "input has to be a 1D or 2D Tensor, but got Tensor of dimension ", indices);
  TORCH_CHECK(indices == 2 || offsets == 1, "offsets has to be a 1D Tensor, but got Tensor of dimension ", offsets);
  TORCH_CHECK(table == 2, "weight has to be a 2D Tensor, but got Tensor of dimension ", table);
  TORCH_CHECK(!a[7].toBool() || tensor(a[2]).size(0) >= 1, "include_last_offset: numBags should be at least 1");
}

// Arguments: input, mask, output. The fallback cannot see overlaps, since it works on copies.
void masked_select_out(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const at::Tensor output = torch::jit::peek(*stack, 2, 3).toTensor();
  at::assert_no_internal_overlap(output);
  at::assert_no_overlap(output, torch::jit::peek(*stack, 0, 3).toTensor());
  at::assert_no_overlap(output, torch::jit::peek(*stack, 1, 3).toTensor());
  operators::fallback(op, keys, stack);
}

// CUDA's kernel gets the value as a number, so the call waits for it.
at::Tensor& masked_fill_(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  TORCH_CHECK(!self.is_cpu(), "masked_fill_: Expected inputs to be on same device");
  return self.masked_fill_(mask, value.item());
}

}  // namespace

void add_others(Registrar& registrar) {
  registrar.body("_fused_dropout", dropout);
  registrar.body("_masked_scale", masked_scale);
  registrar.body("_fill_mem_eff_dropout_mask_", dropout_mask);
  registrar.boxed("masked_select.out", torch::CppFunction::makeFromBoxedFunction<&masked_select_out>(), How::waiting);
  registrar.composed("masked_fill_.Tensor", &masked_fill_);
  operators::Recipe bags;
  bags.shape = [](const c10::OperatorHandle& op, Stack* stack) {
    check_bags(*stack);
    // CUDA's kernel first converts indices and offsets to a common type, which its other results have, too.
    if (tensor((*stack)[1]).scalar_type() != tensor((*stack)[2]).scalar_type()) {
      for (std::size_t i : {1, 2}) {
        (*stack)[i] = tensor((*stack)[i]).to(at::kLong);
      }
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  };
  bags.body = embedding_bag;
  registrar.launched("_embedding_bag", bags, How::own);
  registrar.launched("_embedding_bag_forward_only", bags, How::own);
  // torch has one kernel for all devices. It calls the kernel for dense or for sparse gradients through the dispatcher.
  registrar.composite("_embedding_bag_backward");
  registrar.boxed("triu_indices", torch::CppFunction::makeFromBoxedFunction<&indices<upper>>(), How::own);
  registrar.boxed("tril_indices", torch::CppFunction::makeFromBoxedFunction<&indices<lower>>(), How::own);
  registrar.boxed("_use_cudnn_ctc_loss", torch::CppFunction::makeFromBoxedFunction<&never>(), How::own);
  registrar.boxed("_use_cudnn_ctc_loss.Tensor", torch::CppFunction::makeFromBoxedFunction<&never>(), How::own);
  // Torch's own `out` variant chooses the kernel by the device, not by the dispatcher.
  registrar.boxed("mode.values", torch::CppFunction::makeFromBoxedFunction<&operators::fallback>(), How::synchronous);
  registrar.boxed("_cudnn_init_dropout_state", torch::CppFunction::makeFromBoxedFunction<&dropout_state>(), How::own);
}

}  // namespace simcuda
