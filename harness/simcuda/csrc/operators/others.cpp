// Single operators that CUDA alone has.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "bodies.h"
#include "own.h"
#include "random.h"

namespace simcuda {
namespace {

// Arguments: input, the probability to keep a value, the generator. The mask is of bytes.
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

// Arguments: mask, probability, seed, offset. Which values are below the probability is what its callers look at.
void dropout_mask(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor mask = tensor(a[0]);
  if (!mask.is_meta()) {
    mask.uniform_(0, 1, operators::cpu_generator(static_cast<std::uint64_t>(a[2].toInt()),
                                                 static_cast<std::uint64_t>(a[3].toInt())));
  }
  answer(stack, {mask});
}

// torch's own kernels for this loss are served; cuDNN's would give the same numbers.
void never(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->emplace_back(false);
}

// Arguments: dropout, training, seed, type, layout, device. cuDNN keeps a generator's state there; here nobody reads it.
void dropout_state(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const c10::IValue device = (*stack)[stack->size() - count + 5];
  torch::jit::drop(*stack, count);
  constexpr std::int64_t bytes = 1 << 20;
  const c10::Device place = device.isNone() ? c10::Device(c10::kCUDA) : device.toDevice();
  stack->emplace_back(at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(place)));
}

}  // namespace

void add_others(Registrar& registrar) {
  registrar.body("_fused_dropout", dropout);
  registrar.body("_masked_scale", masked_scale);
  registrar.body("_fill_mem_eff_dropout_mask_", dropout_mask);
  registrar.boxed("_use_cudnn_ctc_loss", torch::CppFunction::makeFromBoxedFunction<&never>(), How::own);
  registrar.boxed("_use_cudnn_ctc_loss.Tensor", torch::CppFunction::makeFromBoxedFunction<&never>(), How::own);
  registrar.boxed("_cudnn_init_dropout_state", torch::CppFunction::makeFromBoxedFunction<&dropout_state>(), How::own);
}

}  // namespace simcuda
