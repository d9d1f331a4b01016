#include "amended.h"

#include <ATen/Context.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax_backward_data.h>

#include <map>
#include <set>
#include <string>
#include <utility>

#include "bodies.h"
#include "norms.h"
#include "rehearsal.h"

namespace simcuda {
namespace {

using operators::Recipe;
using operators::Shape;

// Makes the recipe call `check` at the launch with "meta" tensors, before shapes are computed.
template <typename Check>
void guard(Recipe& recipe, Check check) {
  recipe.shape = [check, shape = std::move(recipe.shape)](const c10::OperatorHandle& op, Stack* stack) {
    check(Arguments(*stack).slice(stack->size() - op.schema().arguments().size()));
    if (shape) {
      shape(op, stack);
    }
  };
}

void check_product(Arguments arguments) {
  at::ScalarType first = at::ScalarType::Undefined;
  for (const c10::IValue& value : arguments) {
    if (!tensor(value).defined()) {
      continue;
    }
    const at::ScalarType dtype = tensor(value).scalar_type();
    TORCH_CHECK(first == at::ScalarType::Undefined || dtype == first,
                "expected m1 and m2 to have the same dtype, but got: ", c10::toString(first),
                " != ", c10::toString(dtype));
    TORCH_CHECK_NOT_IMPLEMENTED(!at::isIntegralType(dtype, true), "\"addmm_cuda\" not implemented for '",
                                c10::toString(dtype), "'");
    first = dtype;
  }
}

// Runs the CPU's kernel on float32: CUDA's kernels compute in float32 and round once. The CPU's own matrix products of
// halves take a hundred times as long if the processor has no arithmetic for them; those of bfloat16 round as on CUDA.
template <bool bfloat>
void in_float(const c10::OperatorHandle& op, Stack* stack) {
  const Stack given = *stack;
  for (c10::IValue& value : *stack) {
    const at::ScalarType dtype = tensor(value).defined() ? tensor(value).scalar_type() : at::ScalarType::Undefined;
    if (dtype == at::kHalf || (bfloat && dtype == at::kBFloat16)) {
      value = tensor(value).to(at::kFloat);
    }
  }
  const c10::FunctionSchema& schema = op.schema();
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (schema.arguments()[i].alias_info() != nullptr && schema.arguments()[i].alias_info()->isWrite()) {
      if (!tensor(given[i]).is_same(tensor(stack->back()))) {
        tensor(given[i]).copy_(tensor(stack->back()));
      }
      answer(stack, {given[i]});
      return;
    }
  }
}

// The CPU's kernels for images accept bytes; CUDA's do not.
void check_no_bytes(Arguments arguments) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor(arguments[0]).scalar_type() != at::kByte,
                              "\"upsample2d_out_frame\" not implemented for 'Byte'");
}

void check_multinomial(Arguments arguments) {
  TORCH_CHECK(tensor(arguments[0]).dim() == 0 || tensor(arguments[0]).size(-1) <= std::int64_t{1} << 24,
              "number of categories cannot exceed 2^24");
}

void check_assertion(Arguments arguments) {
  TORCH_CHECK(tensor(arguments[0]).numel() != 0, "Boolean value of Tensor with no values is ambiguous");
  TORCH_CHECK(tensor(arguments[0]).numel() < 2, "Boolean value of Tensor with more than one value is ambiguous");
}

// Arguments: table, indices, maximum norm, type of norm. The CPU writes before the table for a negative index.
void renorm(const c10::OperatorHandle& op, Stack* stack) {
  const at::Tensor indices = tensor((*stack)[1]);
  TORCH_CHECK_INDEX(indices.numel() == 0 || indices.min().item<std::int64_t>() >= 0, "index out of range in self");
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// Arguments: input, dimension, whether half becomes float, and optionally the output. The CPU lacks this conversion.
void softmax(const c10::OperatorHandle& op, Stack* stack) {
  if ((*stack)[2].toBool()) {
    (*stack)[0] = tensor((*stack)[0]).to(at::kFloat);
    (*stack)[2] = false;
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// Arguments: the result's gradient, the result, dimension, the input's type, and optionally the output.
template <at::Tensor (*function)(const at::Tensor&, const at::Tensor&, std::int64_t, at::ScalarType)>
void softmax_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor grad = tensor(a[0]);
  const at::Tensor result = function(grad, tensor(a[1]), a[2].toInt(), grad.scalar_type()).to(a[3].toScalarType());
  if (a.size() > 4) {
    tensor(a[4]).copy_(result);
    answer(stack, {a[4]});
  } else {
    answer(stack, {result});
  }
}

}  // namespace

operators::Recipe checked(const std::string& name, operators::Recipe recipe) {
  static const std::set<std::string> products = {
      "mm",        "mm.out",     "bmm",     "bmm.out",           "addmm",
      "addmm.out", "addmm_",     "baddbmm", "baddbmm.out",       "baddbmm_",
      "addmv",     "addmv.out",  "addmv_",  "_addmm_activation", "_addmm_activation.out",
      "addbmm",    "addbmm.out", "addbmm_"};
  // For 16-bit types, the CPU either lacks kernels of these operators or rounds intermediate results.
  static const std::set<std::string> float_inside = {"grid_sampler_2d",
                                                     "grid_sampler_2d_backward",
                                                     "grid_sampler_3d",
                                                     "grid_sampler_3d_backward",
                                                     "avg_pool3d",
                                                     "avg_pool3d.out",
                                                     "avg_pool3d_backward",
                                                     "avg_pool3d_backward.grad_input",
                                                     "_upsample_bilinear2d_aa",
                                                     "_upsample_bilinear2d_aa.out",
                                                     "_upsample_bilinear2d_aa_backward",
                                                     "_upsample_bilinear2d_aa_backward.grad_input",
                                                     "_upsample_bicubic2d_aa",
                                                     "_upsample_bicubic2d_aa.out",
                                                     "_upsample_bicubic2d_aa_backward",
                                                     "_upsample_bicubic2d_aa_backward.grad_input",
                                                     "multi_margin_loss",
                                                     "multi_margin_loss.out",
                                                     "multi_margin_loss_backward",
                                                     "multilabel_margin_loss_forward",
                                                     "multilabel_margin_loss_backward",
                                                     "polygamma",
                                                     "polygamma.out",
                                                     "native_layer_norm",
                                                     "native_layer_norm_backward",
                                                     "_native_batch_norm_legit.no_stats",
                                                     "native_batch_norm_backward"};
  static const std::set<std::string> bytes_on_host = {"upsample_bilinear2d", "upsample_bicubic2d",
                                                      "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"};
  static const std::map<std::string, const char*> nondeterministic = {
#define NONDETERMINISTIC(name, as) \
  {name, as}, {std::string(name) + ".grad_input", as}, {std::string(name) + ".out", as},
#include "nondeterministic.def"
#undef NONDETERMINISTIC
  };
  static const std::map<std::string, operators::Body> bodies = {
      {"_softmax", softmax},
      {"_softmax.out", softmax},
      {"_log_softmax", softmax},
      {"_log_softmax.out", softmax},
      {"_softmax_backward_data", softmax_backward<at::_softmax_backward_data>},
      {"_softmax_backward_data.out", softmax_backward<at::_softmax_backward_data>},
      {"_log_softmax_backward_data", softmax_backward<at::_log_softmax_backward_data>},
      {"_log_softmax_backward_data.out", softmax_backward<at::_log_softmax_backward_data>},
      {"embedding_renorm_", renorm},
  };
  if (products.count(name) != 0) {
    guard(recipe, check_product);
    if (!recipe.body) {
      recipe.body = in_float<false>;
      recipe.check = rehearsal(name);  // the body refuses what the CPU's kernel refuses
    }
  }
  if (float_inside.count(name) != 0) {
    recipe.body = in_float<true>;
    recipe.check = rehearsal(name, /*in_float=*/true);
  }
  amend_norm(name, recipe);
  if (bytes_on_host.count(name.substr(0, name.find('.'))) != 0) {
    guard(recipe, check_no_bytes);
  }
  if (name == "multinomial" || name == "multinomial.out") {
    guard(recipe, check_multinomial);
  }
  if (name == "_assert_async" || name == "_assert_async.msg") {
    guard(recipe, check_assertion);
  }
  if (const auto found = nondeterministic.find(name); found != nondeterministic.end()) {
    guard(recipe, [as = found->second](Arguments) { at::globalContext().alertNotDeterministic(as); });
  }
  if (const auto found = bodies.find(name); found != bodies.end()) {
    recipe.body = found->second;
  }
  return recipe;
}

}  // namespace simcuda
