// Shape rules: they compute results without data.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <vector>

namespace operators {

using Arguments = c10::ArrayRef<c10::IValue>;
using Results = std::vector<at::Tensor>;
// Computes the results from "meta" arguments. Tensors that are written are both arguments and results.
using Rule = Results (*)(Arguments);

namespace rules {

at::Tensor of(at::IntArrayRef sizes, at::ScalarType dtype);
// Returns a tensor with the sizes of another; it also has its strides, or if it is not dense, their order.
at::Tensor like(const at::Tensor& tensor, at::ScalarType dtype);
inline at::Tensor like(const at::Tensor& tensor) { return like(tensor, tensor.scalar_type()); }
// Returns a given output, resized if it has other sizes.
at::Tensor given(at::Tensor output, at::IntArrayRef sizes);
// Returns the result type of a function with fractional results.
at::ScalarType fractional(at::ScalarType dtype);
at::Tensor optional(const c10::IValue& value);  // undefined for None

// Returns whether an index is a mask, whose values determine the number of selected elements.
bool is_mask(const at::Tensor& index);

// Pointwise.
Results like_first(Arguments arguments);
Results like_second(Arguments arguments);
Results truth_like_first(Arguments arguments);
Results fractional_like_first(Arguments arguments);
Results magnitude_like_first(Arguments arguments);
Results binary(Arguments arguments);
Results pointwise_out(Arguments arguments);
Results where(Arguments arguments);
Results where_out(Arguments arguments);
Results loss(Arguments arguments);

// In place. Shapes cannot change, so these only check.
Results self(Arguments arguments);
Results fractional_self(Arguments arguments);
Results broadcast_to_self(Arguments arguments);
Results addbmm_self(Arguments arguments);
Results index_fill(Arguments arguments);
Results masked_fill(Arguments arguments);
Results masked_scatter(Arguments arguments);
Results put(Arguments arguments);
Results index_put(Arguments arguments);
Results bernoulli(Arguments arguments);
Results geometric(Arguments arguments);
Results exponential(Arguments arguments);
Results log_normal(Arguments arguments);

// Reductions.
Results first_as_scalar(Arguments arguments);
Results extreme(Arguments arguments);
Results prod(Arguments arguments);
Results nansum(Arguments arguments);
Results trace(Arguments arguments);
Results count_nonzero(Arguments arguments);
Results spread(Arguments arguments);  // var and std
Results spread_and_mean(Arguments arguments);
Results dot(Arguments arguments);
Results addbmm(Arguments arguments);

// Indices.
Results index_select(Arguments arguments);
Results index_select_out(Arguments arguments);
Results take(Arguments arguments);
Results flip(Arguments arguments);
Results roll(Arguments arguments);
Results bucketize(Arguments arguments);
Results searchsorted(Arguments arguments);
Results unfold_backward(Arguments arguments);
Results embedding_backward(Arguments arguments);

// Layers.
Results batch_norm(Arguments arguments);
Results batch_norm_without_statistics(Arguments arguments);
Results batch_norm_backward(Arguments arguments);
Results layer_norm(Arguments arguments);
Results layer_norm_backward(Arguments arguments);
Results group_norm(Arguments arguments);
Results group_norm_backward(Arguments arguments);
Results convolution(Arguments arguments);
Results convolution_backward(Arguments arguments);
Results adaptive_average(Arguments arguments);
Results log_sigmoid(Arguments arguments);
Results nll_loss2d(Arguments arguments);

// Random numbers.
Results dropout(Arguments arguments);
Results multinomial(Arguments arguments);
Results permutation(Arguments arguments);

}  // namespace rules
}  // namespace operators
