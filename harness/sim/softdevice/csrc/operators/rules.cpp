#include "rules.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorUtils.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/native/utils/ParamUtils.h>
#include <ATen/ops/index_meta_dispatch.h>
#include <ATen/ops/result_type.h>

#include <algorithm>
#include <optional>

namespace operators::rules {
namespace {

std::optional<std::vector<std::int64_t>> dims_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::optional(value.toIntVector());
}

at::DimVector reduced(const at::Tensor& tensor, const c10::IValue& dims, bool keep) {
  const auto given = dims_of(dims);
  const at::OptionalIntArrayRef wanted =
      given.has_value() ? at::OptionalIntArrayRef(*given) : at::OptionalIntArrayRef();
  return at::native::shape_from_dim_mask(
      tensor, at::native::make_dim_mask(wanted, tensor.dim(), /*allow_empty_dims=*/false), keep);
}

at::ScalarType statistics_type(const at::Tensor& input, std::initializer_list<at::Tensor> parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (parameter.defined()) {
      return parameter.scalar_type();
    }
  }
  return input.scalar_type();
}

void check_index(const char* name, const at::Tensor& index) {
  TORCH_CHECK(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt, name,
              "(): Expected dtype int32 or int64 for index");
}

at::DimVector selected(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  const at::Tensor& index = a[2].toTensor();
  check_index("index_select", index);
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  const std::int64_t dim = at::maybe_wrap_dim(a[1].toInt(), self.dim());
  at::DimVector sizes(self.sizes());
  if (!sizes.empty()) {
    sizes[static_cast<std::size_t>(dim)] = index.numel();
  } else {
    TORCH_CHECK(index.numel() == 1, "index_select(): Index to scalar can have only 1 value, got ", index.numel(),
                " value(s)");
  }
  return sizes;
}

at::DimVector broadcast(Arguments a, std::size_t count) {
  at::DimVector sizes;
  for (std::size_t i = 0; i < count; ++i) {
    if (a[i].isTensor() && a[i].toTensor().defined()) {
      sizes = at::infer_size_dimvector(sizes, a[i].toTensor().sizes());
    }
  }
  return sizes;
}

at::Tensor masked(const c10::IValue& mask, std::size_t which, const at::Tensor& result) {
  return mask.toBoolList().get(which) ? result : at::Tensor();
}

}  // namespace

at::Tensor of(at::IntArrayRef sizes, at::ScalarType dtype) { return at::Tensor(at::detail::empty_meta(sizes, dtype)); }

at::Tensor like(const at::Tensor& tensor, at::ScalarType dtype) {
  if (tensor.is_non_overlapping_and_dense()) {
    return at::Tensor(at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), dtype));
  }
  return at::Tensor(
      at::detail::empty_strided_meta(tensor.sizes(), at::infer_dense_strides(tensor.sizes(), tensor.strides()), dtype));
}

at::Tensor given(at::Tensor output, at::IntArrayRef sizes) {
  if (output.sizes() != sizes) {
    if (output.numel() != 0) {
      TORCH_WARN("An output with one or more elements was resized since it had shape ", output.sizes(),
                 ", which does not match the required output shape ", sizes, ".");
    }
    output.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  }
  return output;
}

at::ScalarType fractional(at::ScalarType dtype) {
  return at::isIntegralType(dtype, /*includeBool=*/true) ? at::typeMetaToScalarType(at::get_default_dtype()) : dtype;
}

at::Tensor optional(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : at::Tensor(); }

Results like_first(Arguments a) { return {like(a[0].toTensor())}; }
Results like_second(Arguments a) { return {like(a[1].toTensor())}; }
Results truth_like_first(Arguments a) { return {like(a[0].toTensor(), at::kBool)}; }
Results fractional_like_first(Arguments a) {
  return {like(a[0].toTensor(), fractional(a[0].toTensor().scalar_type()))};
}
Results magnitude_like_first(Arguments a) {
  return {like(a[0].toTensor(), fractional(at::toRealValueType(a[0].toTensor().scalar_type())))};
}

Results binary(Arguments a) {
  const at::Tensor& self = a[0].isTensor() ? a[0].toTensor() : a[1].toTensor();
  const at::ScalarType dtype = a[0].isTensor() && a[1].isTensor() ? at::result_type(self, a[1].toTensor())
                               : a[0].isTensor()                  ? at::result_type(self, a[1].toScalar())
                                                                  : at::result_type(a[0].toScalar(), self);
  const at::DimVector sizes = broadcast(a, 2);
  return {sizes == self.sizes() ? like(self, dtype) : of(sizes, dtype)};
}

// The last argument is the output; the others determine only the sizes.
Results pointwise_out(Arguments a) { return {given(a.back().toTensor(), broadcast(a, a.size() - 1))}; }

Results where(Arguments a) {
  const at::ScalarType condition = a[0].toTensor().scalar_type();
  TORCH_CHECK(condition == at::kBool || condition == at::kByte,
              "where expected condition to be a boolean tensor, but "
              "got a tensor with dtype ",
              condition);
  return {of(broadcast(a, 3), at::result_type(a[1].toTensor(), a[2].toTensor()))};
}

Results where_out(Arguments a) {
  const at::Tensor wanted = where(a.slice(0, 3)).front();
  TORCH_CHECK(wanted.scalar_type() == a[3].toTensor().scalar_type(), "Expected out type to be ", wanted.scalar_type(),
              " but got ", a[3].toTensor().scalar_type());
  return {given(a[3].toTensor(), wanted.sizes())};
}

Results self(Arguments a) { return {a[0].toTensor()}; }

Results fractional_self(Arguments a) {
  const at::ScalarType dtype = a[0].toTensor().scalar_type();
  TORCH_CHECK(!at::isIntegralType(dtype, true), "result type Float can't be cast to the desired output type ", dtype);
  return self(a);
}

Results broadcast_to_self(Arguments a) {
  const at::Tensor& target = a[0].toTensor();
  TORCH_CHECK(broadcast(a, 2) == target.sizes(), "output with shape ", target.sizes(),
              " doesn't match the broadcast shape ", at::IntArrayRef(broadcast(a, 2)));
  const at::ScalarType dtype = binary(a).front().scalar_type();
  TORCH_CHECK(at::canCast(dtype, target.scalar_type()), "result type ", dtype,
              " can't be cast to the desired output type ", target.scalar_type());
  return self(a);
}

Results addbmm_self(Arguments a) {
  const at::Tensor wanted = addbmm(a).front();
  TORCH_CHECK(wanted.sizes() == a[0].toTensor().sizes(), "Expected ", wanted.sizes(), " as the shape of self, got ",
              a[0].toTensor().sizes());
  return self(a);
}

// Arguments: self, dimension, index, value.
Results index_fill(Arguments a) {
  const at::Tensor& index = a[2].toTensor();
  TORCH_CHECK_INDEX(index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
                    "index_fill_(): Expected dtype int32/int64 for index.");
  TORCH_CHECK_INDEX(index.dim() <= 1, "Index has to be a vector/scalar");
  at::maybe_wrap_dim(a[1].toInt(), a[0].toTensor().dim());
  TORCH_CHECK(!a[3].isTensor() || a[3].toTensor().dim() == 0,
              "index_fill_ only supports a 0-dimensional value "
              "tensor, but got tensor with ",
              a[3].isTensor() ? a[3].toTensor().dim() : 0, " dimension(s).");
  return self(a);
}

// Arguments: self, mask, value.
Results masked_fill(Arguments a) {
  TORCH_CHECK(a[1].toTensor().scalar_type() == at::kBool,
              "masked_fill_ only supports boolean masks, but got mask "
              "with dtype ",
              a[1].toTensor().scalar_type());
  TORCH_CHECK(!a[2].isTensor() || a[2].toTensor().dim() == 0,
              "masked_fill_ only supports a 0-dimensional value "
              "tensor, but got tensor with ",
              a[2].isTensor() ? a[2].toTensor().dim() : 0, " dimension(s).");
  TORCH_CHECK(broadcast(a, 2) == a[0].toTensor().sizes(), "output with shape ", a[0].toTensor().sizes(),
              " doesn't match the broadcast shape ", at::IntArrayRef(broadcast(a, 2)));
  return self(a);
}

// Arguments: self, mask, source.
Results masked_scatter(Arguments a) {
  TORCH_CHECK(a[1].toTensor().scalar_type() == at::kBool,
              "masked_scatter_ only supports boolean masks, but got mask "
              "with dtype ",
              a[1].toTensor().scalar_type());
  TORCH_CHECK(a[0].toTensor().scalar_type() == a[2].toTensor().scalar_type(),
              "masked_scatter: expected self and "
              "source to have same dtypes but got ",
              a[0].toTensor().scalar_type(), " and ", a[2].toTensor().scalar_type());
  TORCH_CHECK(broadcast(a, 2) == a[0].toTensor().sizes(), "output with shape ", a[0].toTensor().sizes(),
              " doesn't match the broadcast shape ", at::IntArrayRef(broadcast(a, 2)));
  return self(a);
}

// Arguments: self, index, source.
Results put(Arguments a) {
  TORCH_CHECK_INDEX(a[1].toTensor().scalar_type() == at::kLong, "put_(): Expected a long tensor for index, but got ",
                    a[1].toTensor().scalar_type());
  TORCH_CHECK(a[0].toTensor().scalar_type() == a[2].toTensor().scalar_type(),
              "put_(): self and source expected to "
              "have the same dtype, but got self.dtype = ",
              a[0].toTensor().scalar_type(), " and source.dtype = ", a[2].toTensor().scalar_type());
  TORCH_CHECK_INDEX(a[1].toTensor().numel() == a[2].toTensor().numel(),
                    "put_(): Expected source and index to have "
                    "the same number of elements, but got source.numel() = ",
                    a[2].toTensor().numel(), ", index.numel() = ", a[1].toTensor().numel());
  return self(a);
}

bool is_mask(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
}

// Arguments: self, indices, values. The number of selected elements is unknown with masks, but a mask's sizes must
// match.
Results index_put(Arguments a) {
  const at::Tensor& target = a[0].toTensor();
  const at::Tensor& values = a[2].toTensor();
  TORCH_CHECK_INDEX(target.scalar_type() == values.scalar_type(),
                    "Index put requires the source and destination "
                    "dtypes match, got ",
                    target.scalar_type(), " for the destination and ", values.scalar_type(), " for the source.");
  c10::List<std::optional<at::Tensor>> indices;
  std::int64_t at = 0;
  bool masks = false;
  for (const std::optional<at::Tensor>& index : a[1].toOptionalTensorVector()) {
    indices.push_back(index);
    if (!index.has_value() || !is_mask(*index)) {
      ++at;
      continue;
    }
    masks = true;
    for (std::int64_t i = 0; i < index->dim(); ++i, ++at) {
      TORCH_CHECK_INDEX(at < target.dim() && index->size(i) == target.size(at), "The shape of the mask ",
                        index->sizes(), " at index ", i, " does not match the shape of the indexed tensor ",
                        target.sizes(), " at index ", at);
    }
  }
  TORCH_CHECK_INDEX(at <= target.dim(), "too many indices for tensor of dimension ", target.dim(), " (got ", at, ")");
  if (!masks) {
    const at::Tensor selected = at::meta::index(target, indices);
    TORCH_CHECK(at::is_expandable_to(values.sizes(), selected.sizes()), "shape mismatch: value tensor of shape ",
                values.sizes(), " cannot be broadcast to indexing result of shape ", selected.sizes());
  }
  return self(a);
}

Results bernoulli(Arguments a) {
  if (a[1].isTensor()) {
    TORCH_CHECK(at::is_expandable_to(a[1].toTensor().sizes(), a[0].toTensor().sizes()),
                "bernoulli_: probabilities of "
                "shape ",
                a[1].toTensor().sizes(), " for a tensor of shape ", a[0].toTensor().sizes());
  } else {
    TORCH_CHECK(0 <= a[1].toDouble() && a[1].toDouble() <= 1,
                "bernoulli_ expects p to be in [0, 1], but got p=", a[1].toDouble());
  }
  return self(a);
}

Results geometric(Arguments a) {
  TORCH_CHECK(0 < a[1].toDouble() && a[1].toDouble() < 1,
              "geometric_ expects p to be in (0, 1), but got p=", a[1].toDouble());
  return self(a);
}

Results exponential(Arguments a) {
  TORCH_CHECK(a[1].toDouble() > 0, "exponential_ expects lambda > 0.0, but found lambda=", a[1].toDouble());
  return fractional_self(a);
}

Results log_normal(Arguments a) {
  TORCH_CHECK(a[2].toDouble() > 0, "log_normal_ expects std > 0.0, but found std=", a[2].toDouble());
  return fractional_self(a);
}

Results loss(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  const at::DimVector sizes = broadcast(a, 2);
  const bool whole = std::any_of(a.begin() + 2, a.end(), [](const c10::IValue& value) {
    return value.isInt() && value.toInt() != at::Reduction::None;
  });
  return {whole ? of({}, self.scalar_type()) : sizes == self.sizes() ? like(self) : of(sizes, self.scalar_type())};
}

Results first_as_scalar(Arguments a) { return {of({}, a[0].toTensor().scalar_type())}; }

Results extreme(Arguments a) {
  TORCH_CHECK(a[0].toTensor().numel() > 0,
              "max/min(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim "
              "with the 'dim' argument.");
  return first_as_scalar(a);
}

Results prod(Arguments a) {
  const at::ScalarType own = a[0].toTensor().scalar_type();
  return {of({}, a[1].isNone() ? (at::isIntegralType(own, true) ? at::kLong : own) : a[1].toScalarType())};
}

Results nansum(Arguments a) {
  const at::ScalarType own = a[0].toTensor().scalar_type();
  TORCH_CHECK(!at::isComplexType(own), "nansum does not support complex inputs");
  return {of(reduced(a[0].toTensor(), a[1], a[2].toBool()),
             a[3].isNone() ? (at::isIntegralType(own, true) ? at::kLong : own) : a[3].toScalarType())};
}

Results trace(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, but got tensor with dim ", self.dim());
  return {of({}, at::isIntegralType(self.scalar_type(), true) ? at::kLong : self.scalar_type())};
}

Results count_nonzero(Arguments a) { return {of(reduced(a[0].toTensor(), a[1], false), at::kLong)}; }

Results spread(Arguments a) {
  const at::ScalarType dtype = a[0].toTensor().scalar_type();
  TORCH_CHECK(at::isFloatingType(dtype) || at::isComplexType(dtype),
              "std and var only support floating point and complex dtypes");
  return {of(reduced(a[0].toTensor(), a[1], a[3].toBool()), at::toRealValueType(dtype))};
}

Results spread_and_mean(Arguments a) {
  const at::Tensor first = spread(a).front();
  return {first, of(first.sizes(), a[0].toTensor().scalar_type())};
}

Results dot(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  const at::Tensor& other = a[1].toTensor();
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1, "1D tensors expected, but got ", self.dim(), "D and ", other.dim(),
              "D tensors");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "dot : expected both vectors to have same dtype, but found ",
              self.scalar_type(), " and ", other.scalar_type());
  TORCH_CHECK(self.numel() == other.numel(), "inconsistent tensor size, expected tensor [", self.numel(), "] and src [",
              other.numel(), "] to have the same number of elements, but got ", self.numel(), " and ", other.numel(),
              " elements respectively");
  return first_as_scalar(a);
}

Results addbmm(Arguments a) {
  const at::Tensor& left = a[1].toTensor();
  const at::Tensor& right = a[2].toTensor();
  TORCH_CHECK(left.dim() == 3 && right.dim() == 3, "batch1 and batch2 must be 3D tensors");
  TORCH_CHECK(left.size(0) == right.size(0) && left.size(2) == right.size(1),
              "Incompatible matrix sizes for bmm: ", left.sizes(), " and ", right.sizes());
  return {of({left.size(1), right.size(2)}, a[0].toTensor().scalar_type())};
}

Results index_select(Arguments a) { return {of(selected(a), a[0].toTensor().scalar_type())}; }
Results index_select_out(Arguments a) {
  TORCH_CHECK(a[0].toTensor().scalar_type() == a[3].toTensor().scalar_type(),
              "index_select(): self and result must have the same scalar type");
  return {given(a[3].toTensor(), selected(a))};
}

Results take(Arguments a) {
  TORCH_CHECK(a[1].toTensor().scalar_type() == at::kLong, "take(): Expected a long tensor for index, but got ",
              a[1].toTensor().scalar_type());
  return {of(a[1].toTensor().sizes(), a[0].toTensor().scalar_type())};
}

Results flip(Arguments a) {
  const auto dims = a[1].toIntVector();
  at::dim_list_to_bitset(dims, static_cast<std::size_t>(a[0].toTensor().dim()));  // refuses invalid and repeated ones
  return like_first(a);
}

Results roll(Arguments a) {
  const auto shifts = a[1].toIntVector();
  const auto dims = a[2].toIntVector();
  TORCH_CHECK(!shifts.empty(), "`shifts` required");
  TORCH_CHECK(dims.empty() ? shifts.size() == 1 : shifts.size() == dims.size(),
              "shifts and dimensions must align. shifts: ", shifts.size(), ", dims:", dims.size());
  for (const std::int64_t dim : dims) {
    at::maybe_wrap_dim(dim, a[0].toTensor().dim());
  }
  return {of(a[0].toTensor().sizes(), a[0].toTensor().scalar_type())};
}

Results bucketize(Arguments a) {
  TORCH_CHECK(a[1].toTensor().dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", a[1].toTensor().dim(),
              ")");
  return {of(a[0].toTensor().sizes(), a[2].toBool() ? at::kInt : at::kLong)};
}

Results searchsorted(Arguments a) {
  const at::Tensor& boundaries = a[0].toTensor();
  const at::Tensor& values = a[1].toTensor();
  TORCH_CHECK(boundaries.scalar_type() == values.scalar_type(),
              "torch.searchsorted(): boundary tensor and input "
              "value tensor should have same dtype, but got boundary tensor dtype ",
              boundaries.scalar_type(), " and input value tensor dtype ", values.scalar_type());
  const bool same_rows = boundaries.dim() == values.dim() && boundaries.dim() > 0 &&
                         boundaries.sizes().slice(0, boundaries.dim() - 1) == values.sizes().slice(0, values.dim() - 1);
  TORCH_CHECK(boundaries.dim() == 1 || same_rows,
              "torch.searchsorted(): boundaries tensor should be 1 dimension or "
              "the first N-1 dimensions of boundaries tensor and input value tensor must match, but we got boundaries "
              "tensor ",
              boundaries.sizes(), " and input value tensor ", values.sizes());
  return {of(values.sizes(), a[2].toBool() ? at::kInt : at::kLong)};
}

Results unfold_backward(Arguments a) { return {of(a[1].toIntVector(), a[0].toTensor().scalar_type())}; }

Results embedding_backward(Arguments a) {
  const at::Tensor& grad = a[0].toTensor();
  return {of({a[2].toInt(), grad.size(-1)}, grad.scalar_type())};
}

namespace {
Results normalised(const at::Tensor& input, at::ScalarType dtype, bool training) {
  const at::DimVector sizes = {training ? input.size(1) : 0};
  return {like(input), of(sizes, dtype), of(sizes, dtype)};
}
}  // namespace

Results batch_norm(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  return normalised(input, statistics_type(input, {optional(a[1]), optional(a[3])}), a[5].toBool());
}

Results batch_norm_without_statistics(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  return normalised(input, statistics_type(input, {optional(a[1])}), a[3].toBool());
}

Results batch_norm_backward(Arguments a) {
  const at::Tensor& input = a[1].toTensor();
  const at::ScalarType dtype = statistics_type(input, {optional(a[2]), optional(a[3])});
  return {masked(a[9], 0, like(input)), masked(a[9], 1, of({input.size(1)}, dtype)),
          masked(a[9], 2, of({input.size(1)}, dtype))};
}

Results layer_norm(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  const auto shape = a[1].toIntVector();
  const auto inner = static_cast<std::int64_t>(shape.size());
  TORCH_CHECK(inner >= 1,
              "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one "
              "element, but got normalized_shape = ",
              at::IntArrayRef(shape));
  TORCH_CHECK(input.dim() >= inner && input.sizes().slice(input.dim() - inner) == at::IntArrayRef(shape),
              "Given normalized_shape=", at::IntArrayRef(shape),
              ", expected input with its last sizes, but got input "
              "of size",
              input.sizes());
  for (std::size_t i = 2; i < 4; ++i) {
    const at::Tensor parameter = optional(a[i]);
    TORCH_CHECK(!parameter.defined() || parameter.sizes() == at::IntArrayRef(shape),
                "Expected weight and bias of the "
                "same shape as normalized_shape, but got one of shape ",
                parameter.sizes(), " and normalized_shape = ", at::IntArrayRef(shape));
  }
  at::DimVector statistics(input.sizes());
  std::fill(statistics.end() - inner, statistics.end(), 1);
  const at::ScalarType dtype = statistics_type(input, {optional(a[2]), optional(a[3])});
  return {of(input.sizes(), input.scalar_type()), of(statistics, dtype), of(statistics, dtype)};
}

Results layer_norm_backward(Arguments a) {
  const auto shape = a[2].toIntVector();
  const at::Tensor& input = a[1].toTensor();
  const at::ScalarType dtype = statistics_type(input, {optional(a[5]), optional(a[6])});
  return {masked(a[7], 0, like(input)), masked(a[7], 1, of(shape, dtype)), masked(a[7], 2, of(shape, dtype))};
}

Results group_norm(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  const at::ScalarType dtype = statistics_type(input, {optional(a[1]), optional(a[2])});
  const at::DimVector statistics = {a[3].toInt(), a[6].toInt()};
  return {like(input), of(statistics, dtype), of(statistics, dtype)};
}

Results group_norm_backward(Arguments a) {
  const at::Tensor& input = a[1].toTensor();
  const at::ScalarType dtype = statistics_type(input, {optional(a[4])});
  const at::DimVector channels = {a[6].toInt()};
  return {masked(a[9], 0, like(input)), masked(a[9], 1, of(channels, dtype)), masked(a[9], 2, of(channels, dtype))};
}

Results convolution(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  const at::Tensor& weight = a[1].toTensor();
  // A single number applies to all dimensions.
  const auto each = [&](const c10::IValue& value, const char* name) {
    return at::native::expand_param_if_needed(value.toIntVector(), name, weight.dim() - 2);
  };
  const auto stride = each(a[3], "stride");
  const auto padding = each(a[4], "padding");
  const auto dilation = each(a[5], "dilation");
  TORCH_CHECK(input.scalar_type() == weight.scalar_type(), "Input type (", input.scalar_type(), ") and weight type (",
              weight.scalar_type(), ") should be the same");
  if (a[6].toBool()) {
    return {of(at::native::conv_input_size(input.sizes(), weight.sizes(), padding, each(a[7], "output_padding"), stride,
                                           dilation, a[8].toInt()),
               input.scalar_type())};
  }
  return {
      of(at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation), input.scalar_type())};
}

Results convolution_backward(Arguments a) {
  const at::Tensor& weight = a[2].toTensor();
  const bool transposed = a[6].toBool();
  const std::int64_t channels = transposed ? weight.size(1) * a[8].toInt() : weight.size(0);
  return {masked(a[9], 0, of(a[1].toTensor().sizes(), a[1].toTensor().scalar_type())),
          masked(a[9], 1, of(weight.sizes(), weight.scalar_type())),
          masked(a[9], 2, of({channels}, weight.scalar_type()))};
}

Results adaptive_average(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  const auto wanted = a[1].toIntVector();
  TORCH_CHECK(wanted.size() == 2 && (input.dim() == 3 || input.dim() == 4),
              "adaptive_avg_pool2d(): Expected 3D or 4D tensor and two sizes, but got ", input.sizes());
  at::DimVector sizes(input.sizes());
  std::copy(wanted.begin(), wanted.end(), sizes.end() - 2);
  const at::Tensor result = of(sizes, input.scalar_type());
  if (input.dim() == 4) {
    result.unsafeGetTensorImpl()->empty_tensor_restride(input.suggest_memory_format());
  }
  return {result};
}

Results log_sigmoid(Arguments a) { return {like(a[0].toTensor()), like(a[0].toTensor())}; }

Results nll_loss2d(Arguments a) {
  const at::Tensor& input = a[0].toTensor();
  const at::Tensor& target = a[1].toTensor();
  TORCH_CHECK(target.dim() == 3,
              "only batches of spatial targets supported (3D tensors) but got targets of dimension: ", target.dim());
  TORCH_CHECK(input.dim() == 4,
              "only batches of spatial inputs supported (4D tensors), but got input of dimension: ", input.dim());
  TORCH_CHECK(input.size(0) == target.size(0) && input.size(2) == target.size(1) && input.size(3) == target.size(2),
              "size mismatch (got input: ", input.sizes(), " , target: ", target.sizes());
  const bool whole = a[3].toInt() != at::Reduction::None;
  return {of(whole ? at::IntArrayRef() : target.sizes(), input.scalar_type()), of({}, input.scalar_type())};
}

Results dropout(Arguments a) { return {like(a[0].toTensor()), like(a[0].toTensor(), at::kBool)}; }

Results multinomial(Arguments a) {
  const at::Tensor& self = a[0].toTensor();
  const std::int64_t samples = a[1].toInt();
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(at::isFloatingType(self.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(a[2].toBool() || samples <= self.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  at::DimVector sizes(self.sizes());
  sizes.back() = samples;
  return {of(sizes, at::kLong)};
}

Results permutation(Arguments a) {
  TORCH_CHECK(a[0].toInt() >= 0, "n must be non-negative, got", a[0].toInt());
  return {given(a.back().toTensor(), {a[0].toInt()})};
}

}  // namespace operators::rules
