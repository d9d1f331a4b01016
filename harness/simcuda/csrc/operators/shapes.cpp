// Shapes of operators that run later than their launch on CUDA, and for which torch has no rule.
#include "bodies.h"
#include "own.h"
#include "rules.h"

namespace simcuda {
namespace {

using operators::Results;
using operators::Rule;
namespace rules = operators::rules;

Results like_first_and_mask(Arguments a) {
  return {rules::like(tensor(a[0])), rules::like(tensor(a[0]), at::kBool)};
}
// Of input, scale and zero point, which stand behind the result's gradient.
Results like_three_behind(Arguments a) {
  return {rules::like(tensor(a[1])), rules::like(tensor(a[2])), rules::like(tensor(a[3]))};
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
}

}  // namespace simcuda
