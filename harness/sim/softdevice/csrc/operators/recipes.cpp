#include "recipes.h"

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "rules.h"

namespace operators {
namespace {

Shape shape_of(Rule rule) {
  return [rule](const c10::OperatorHandle& op, Stack* stack) {
    const std::size_t count = op.schema().arguments().size();
    Results results = rule(Arguments(*stack).slice(stack->size() - count));
    torch::jit::drop(*stack, count);
    for (at::Tensor& result : results) {
      stack->emplace_back(std::move(result));
    }
  };
}

void answer(Stack* stack, std::initializer_list<at::Tensor> results) {
  stack->clear();
  for (const at::Tensor& result : results) {
    stack->emplace_back(result);
  }
}

void convolve(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Arguments a = *stack;
  answer(stack,
         {at::convolution(a[0].toTensor(), a[1].toTensor(), a[2].toOptional<at::Tensor>(), a[3].toIntVector(),
                          a[4].toIntVector(), a[5].toIntVector(), a[6].toBool(), a[7].toIntVector(), a[8].toInt())});
}

void convolve_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Arguments a = *stack;
  const at::Tensor weight = a[2].toTensor();
  const bool transposed = a[6].toBool();
  const std::vector<std::int64_t> bias = {transposed ? weight.size(1) * a[8].toInt() : weight.size(0)};
  const c10::List<bool> mask = a[9].toBoolList();
  const auto [input, kernel, offset] = at::convolution_backward(
      a[0].toTensor(), a[1].toTensor(), weight, at::OptionalIntArrayRef(bias), a[3].toIntVector(), a[4].toIntVector(),
      a[5].toIntVector(), transposed, a[7].toIntVector(), a[8].toInt(), {mask.get(0), mask.get(1), mask.get(2)});
  answer(stack, {input, kernel, offset});
}

// Arguments: input, probability, whether in training (None means yes), and the generator.
void drop_out(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Arguments a = *stack;
  const at::Tensor input = a[0].toTensor();
  const double probability = a[1].toDouble();
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
  if (!a[2].isNone() && !a[2].toBool()) {
    answer(stack, {input, mask.fill_(true)});
    return;
  }
  mask.bernoulli_(1.0 - probability, a[3].toGenerator());
  const double scale = probability == 1.0 ? 0.0 : 1.0 / (1.0 - probability);
  answer(stack, {input.mul(mask).mul_(scale), mask});
}

bool has_mask(const Stack& stack, std::size_t arguments) {
  for (std::size_t i = stack.size() - arguments; i < stack.size(); ++i) {
    if (stack[i].isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& index : stack[i].toOptionalTensorVector()) {
        if (index.has_value() && rules::is_mask(*index)) {
          return true;
        }
      }
    }
  }
  return false;
}

Recipe plain(Rule rule) {
  Recipe recipe;
  recipe.shape = shape_of(rule);
  return recipe;
}
Recipe unchecked() { return Recipe{}; }

Recipe with_body(Rule rule, Body body) {
  Recipe recipe = plain(rule);
  recipe.body = std::move(body);
  return recipe;
}

// torch computes these shapes only in Python: the launch is slower, but equally correct.
Recipe asked_of_python() {
  Recipe recipe;
  recipe.shape = [](const c10::OperatorHandle& op, Stack* stack) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  };
  return recipe;
}

}  // namespace

std::vector<std::pair<std::string, Recipe>> recipes() {
  using namespace rules;
  std::vector<std::pair<std::string, Recipe>> all;
  const auto each = [&](Recipe recipe, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      all.emplace_back(name, recipe);
    }
  };
  each(plain(like_first), {"relu", "hardswish", "hardtanh", "bernoulli.out", "poisson", "remainder.Scalar_Tensor",
                           "_logcumsumexp", "_functional_assert_async.msg"});
  each(plain(like_second),
       {"hardswish_backward", "mish_backward", "hardtanh_backward", "glu_backward", "log_sigmoid_backward",
        "mse_loss_backward", "binary_cross_entropy_backward", "_adaptive_avg_pool2d_backward", "nll_loss2d_backward"});
  each(plain(truth_like_first), {"isnan"});
  each(plain(fractional_like_first), {"logit", "native_dropout_backward"});
  each(plain(magnitude_like_first), {"angle"});
  each(plain(binary), {"floor_divide", "rsub.Tensor", "__lshift__.Scalar", "__lshift__.Tensor", "__rshift__.Scalar",
                       "__rshift__.Tensor"});
  each(plain(pointwise_out), {"abs.out", "angle.out", "conj_physical.out", "logical_and.out", "logical_or.out",
                              "logical_xor.out", "logical_not.out", "nan_to_num.out", "complex.out", "polar.out",
                              "hardswish.out", "hardtanh.out", "logit.out", "floor_divide.out", "mvlgamma.out"});
  each(plain(rules::where), {"where.self"});
  each(plain(self), {"relu_", "hardswish_", "hardtanh_"});
  each(plain(fractional_self), {"logit_", "cauchy_"});
  each(plain(broadcast_to_self), {"floor_divide_.Tensor", "__ilshift__.Scalar", "__ilshift__.Tensor",
                                  "__irshift__.Scalar", "__irshift__.Tensor"});
  each(plain(addbmm_self), {"addbmm_"});
  each(plain(index_fill), {"index_fill_.int_Scalar", "index_fill_.int_Tensor"});
  each(plain(masked_fill), {"masked_fill_.Scalar", "masked_fill_.Tensor"});
  each(plain(masked_scatter), {"masked_scatter_"});
  each(plain(put), {"put_"});
  each(plain(bernoulli), {"bernoulli_.float", "bernoulli_.Tensor"});
  each(plain(geometric), {"geometric_"});
  each(plain(exponential), {"exponential_"});
  each(plain(log_normal), {"log_normal_"});
  Recipe putting = plain(index_put);
  putting.host_operands = true;
  each(putting, {"_index_put_impl_"});
  each(plain(where_out), {"where.self_out"});
  each(plain(loss), {"binary_cross_entropy", "huber_loss"});
  each(unchecked(),
       {"smooth_l1_loss_backward.grad_input", "huber_loss_backward.out", "_cummax_helper", "_cummin_helper",
        "_assert_async", "_assert_async.msg", "_amp_update_scale_", "_amp_foreach_non_finite_check_and_unscale_",
        "_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adam_", "_fused_adam_.tensor_lr", "_fused_adamw_",
        "_fused_adamw_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr"});

  each(plain(first_as_scalar), {"median", "nanmedian"});
  each(plain(extreme), {"max", "min"});
  each(plain(prod), {"prod"});
  each(plain(nansum), {"nansum"});
  each(plain(trace), {"trace"});
  each(plain(count_nonzero), {"count_nonzero.dim_IntList"});
  each(plain(spread), {"var.correction", "std.correction"});
  each(plain(spread_and_mean), {"var_mean.correction", "std_mean.correction"});
  each(plain(dot), {"dot", "vdot"});
  each(plain(addbmm), {"addbmm"});

  each(plain(index_select), {"index_select"});
  each(plain(index_select_out), {"index_select.out"});
  each(plain(take), {"take"});
  each(plain(flip), {"flip"});
  each(plain(roll), {"roll"});
  each(plain(bucketize), {"bucketize.Tensor"});
  each(plain(searchsorted), {"searchsorted.Tensor"});
  each(plain(unfold_backward), {"unfold_backward"});
  each(plain(embedding_backward), {"embedding_dense_backward"});

  each(plain(batch_norm), {"native_batch_norm", "_native_batch_norm_legit"});
  each(plain(batch_norm_without_statistics), {"_native_batch_norm_legit.no_stats"});
  each(plain(batch_norm_backward), {"native_batch_norm_backward"});
  each(plain(layer_norm), {"native_layer_norm"});
  each(plain(layer_norm_backward), {"native_layer_norm_backward"});
  each(plain(group_norm), {"native_group_norm"});
  each(plain(group_norm_backward), {"native_group_norm_backward"});
  each(plain(adaptive_average), {"_adaptive_avg_pool2d"});
  each(plain(log_sigmoid), {"log_sigmoid_forward"});
  each(plain(nll_loss2d), {"nll_loss2d_forward"});

  Recipe dropping = with_body(dropout, drop_out);
  dropping.draws = [](const Stack& /*stack*/, std::size_t /*arguments*/) { return true; };
  each(dropping, {"native_dropout"});
  each(plain(multinomial), {"multinomial"});
  each(plain(permutation), {"randperm.generator_out"});

  each(asked_of_python(),
       {"reflection_pad2d", "reflection_pad2d_backward", "replication_pad2d_backward", "im2col", "col2im",
        "_cdist_forward", "_prelu_kernel", "_prelu_kernel_backward", "median.dim_values", "nanmedian.dim_values",
        "kthvalue.values", "var.correction_out", "std.correction_out", "multi_margin_loss", "grid_sampler_2d"});
  return all;
}

Recipe convolution() { return with_body(rules::convolution, convolve); }
Recipe convolution_backward() { return with_body(rules::convolution_backward, convolve_backward); }

void amend(const std::string& name, Recipe& recipe) {
  // The values of a mask determine the size of the result.
  static constexpr std::array<std::string_view, 2> read = {"index.Tensor", "index.Tensor_out"};
  if (std::find(read.begin(), read.end(), name) != read.end()) {
    recipe.host_operands = true;
    recipe.declines = has_mask;
  }
}

}  // namespace operators
