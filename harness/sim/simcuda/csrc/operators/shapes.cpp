// Shapes of operators that CUDA launches, for which torch has no meta kernel or one with other results.
#include <ATen/native/LossMulti.h>

#include <cstdint>
#include <utility>

#include "bodies.h"
#include "own.h"
#include "rules.h"

namespace simcuda {
namespace {

using operators::Results;
using operators::Rule;
namespace rules = operators::rules;

Results like_first_and_mask(Arguments a) { return {rules::like(tensor(a[0])), rules::like(tensor(a[0]), at::kBool)}; }
// Returns the shapes of input, scale and zero point, which follow the result's gradient.
Results like_three_behind(Arguments a) {
  return {rules::like(tensor(a[1])), rules::like(tensor(a[2])), rules::like(tensor(a[3]))};
}

// Max pooling over volumes. torch's meta kernel ignores the memory format of an unbatched volume.
void windows_over_volumes(const c10::OperatorHandle& op, Stack* stack) {
  const at::Tensor batch = tensor(stack->front()).dim() == 4 ? tensor(stack->front()).unsqueeze(0) : at::Tensor();
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  if (batch.defined() && !batch.is_contiguous() && batch.is_contiguous(at::MemoryFormat::ChannelsLast3d)) {
    for (c10::IValue& result : *stack) {
      result = tensor(result).unsqueeze(0).contiguous(at::MemoryFormat::ChannelsLast3d).squeeze(0);
    }
  }
}

// Returns the shape of a loss per sample, or of one for all. torch's meta kernels treat an unbatched sample as a batch
// of one.
Results margin_loss(Arguments a) {
  const at::Tensor input = tensor(a[0]), target = tensor(a[1]);
  std::int64_t samples = 0, classes = 0;
  at::native::multi_margin_loss_shape_check(samples, classes, input.dim(), input, target, optional(a[4]));
  const bool each = a[5].toInt() == at::Reduction::None && target.dim() > 0;
  return {rules::of(each ? target.sizes() : at::IntArrayRef(), input.scalar_type())};
}
Results multilabel_margin_loss(Arguments a) {
  const at::Tensor input = tensor(a[0]), target = tensor(a[1]);
  std::int64_t samples = 0, classes = 0;
  at::native::multilabel_margin_loss_shape_check(samples, classes, input.dim(), input, target);
  const bool each = a[2].toInt() == at::Reduction::None && input.dim() > 1;
  return {rules::of(each ? input.sizes().slice(0, 1) : at::IntArrayRef(), input.scalar_type()),
          rules::of(target.sizes(), input.scalar_type())};
}

void add(Registrar& registrar, Rule rule, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    operators::Recipe recipe;
    recipe.shape = [rule](const c10::OperatorHandle& /*op*/, Stack* stack) {
      const Results results = rule(*stack);
      stack->assign(results.begin(), results.end());
    };
    registrar.launched(name, std::move(recipe), How::shaped);
  }
}

}  // namespace

void add_shapes(Registrar& registrar) {
  add(registrar, rules::like_first,
      {"_masked_softmax", "_masked_softmax_backward", "glu_jvp", "glu_backward_jvp", "_standard_gamma_grad",
       "_sample_dirichlet", "_dirichlet_grad", "binomial", "_fake_quantize_learnable_per_tensor_affine",
       "_fake_quantize_learnable_per_channel_affine"});
  add(registrar, rules::like_second,
      {"_ctc_loss_backward", "_ctc_loss_backward.Tensor", "multi_margin_loss_backward",
       "multilabel_margin_loss_backward", "fractional_max_pool3d_backward"});
  add(registrar, like_first_and_mask,
      {"fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask",
       "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"});
  add(registrar, like_three_behind,
      {"_fake_quantize_learnable_per_tensor_affine_backward", "_fake_quantize_learnable_per_channel_affine_backward"});
  add(registrar, margin_loss, {"multi_margin_loss"});
  add(registrar, multilabel_margin_loss, {"multilabel_margin_loss_forward"});
  operators::Recipe volumes;
  volumes.shape = windows_over_volumes;
  registrar.launched("max_pool3d_with_indices", std::move(volumes), How::shaped);
}

}  // namespace simcuda
