// CUDA's fused attention: flash, memory-efficient and cuDNN's. All scores are computed at once, in float. A backward
// pass recomputes them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "bodies.h"
#include "own.h"
#include "random.h"

namespace simcuda {
namespace {

enum class Causal { no, from_top_left, from_bottom_right };

// The masks and the scale of one launch. A negative window size means no window.
struct Mode {
  double scale;
  Causal causal = Causal::no;
  std::int64_t left = -1, right = -1;
  double dropout = 0;
  std::uint64_t seed = 0;
};

// One batch of sequences of equal length: each tensor is a float [batch, heads, length, size].
struct Batch {
  at::Tensor query, key, value, bias;
};

// Converts between [batch, heads, length, size] and [batch, length, heads, size].
at::Tensor swapped(const at::Tensor& tensor) { return tensor.transpose(1, 2); }

at::Tensor repeated(const at::Tensor& tensor, std::int64_t heads) {
  const std::int64_t times = heads / tensor.size(1);
  return times == 1 ? tensor : tensor.repeat_interleave(times, 1);
}

at::Tensor gathered(const at::Tensor& grad, std::int64_t heads) {
  const std::int64_t times = grad.size(1) / heads;
  return times == 1 ? grad : grad.unflatten(1, {heads, times}).sum(2);
}

at::Tensor allowed(const Mode& mode, std::int64_t queries, std::int64_t keys) {
  const at::Tensor row = at::arange(queries).unsqueeze(1), column = at::arange(keys).unsqueeze(0);
  const std::int64_t shift = mode.causal == Causal::from_top_left ? 0 : keys - queries;
  at::Tensor result = at::ones({queries, keys}, at::TensorOptions().dtype(at::kBool));
  if (mode.causal != Causal::no) {
    result = result.logical_and(column.le(row + shift));
  }
  if (mode.left >= 0) {
    result = result.logical_and(column.ge(row + (shift - mode.left)));
  }
  if (mode.right >= 0) {
    result = result.logical_and(column.le(row + (shift + mode.right)));
  }
  return result;
}

struct Scores {
  at::Tensor probabilities, logsumexp;
  at::Tensor kept;  // the factors of dropout; undefined without dropout
};

Scores scores(const Batch& batch, const Mode& mode) {
  const std::int64_t heads = batch.query.size(1);
  at::Tensor raw = at::matmul(batch.query, repeated(batch.key, heads).transpose(-2, -1)).mul_(mode.scale);
  if (batch.bias.defined()) {
    raw = raw + batch.bias;
  }
  if (mode.causal != Causal::no || mode.left >= 0 || mode.right >= 0) {
    raw.masked_fill_(allowed(mode, raw.size(-2), raw.size(-1)).logical_not(), -std::numeric_limits<double>::infinity());
  }
  Scores result;
  result.logsumexp = raw.logsumexp({-1});
  result.probabilities = raw.sub(result.logsumexp.unsqueeze(-1)).exp_().nan_to_num(0.0);  // 0 for rows without keys
  if (mode.dropout > 0) {
    result.kept = at::empty_like(result.probabilities)
                      .bernoulli_(1 - mode.dropout, operators::cpu_generator(mode.seed, 0))
                      .div_(1 - mode.dropout);
  }
  return result;
}

at::Tensor kept(const Scores& scores, const at::Tensor& tensor) {
  return scores.kept.defined() ? tensor * scores.kept : tensor;
}

struct Forward {
  at::Tensor output, logsumexp;
};

Forward forward(const Batch& batch, const Mode& mode) {
  const Scores found = scores(batch, mode);
  return {at::matmul(kept(found, found.probabilities), repeated(batch.value, batch.query.size(1))), found.logsumexp};
}

struct Backward {
  at::Tensor query, key, value, bias;
};

Backward backward(const Batch& batch, const at::Tensor& grad, const Mode& mode) {
  const std::int64_t heads = batch.query.size(1);
  const Scores found = scores(batch, mode);
  const at::Tensor& p = found.probabilities;
  const at::Tensor values = at::matmul(kept(found, p).transpose(-2, -1), grad);
  const at::Tensor of_p = kept(found, at::matmul(grad, repeated(batch.value, heads).transpose(-2, -1)));
  const at::Tensor of_scores = p * (of_p - (of_p * p).sum(-1, /*keepdim=*/true));
  return {at::matmul(of_scores, repeated(batch.key, heads)).mul_(mode.scale),
          gathered(at::matmul(of_scores.transpose(-2, -1), batch.query).mul_(mode.scale), batch.key.size(1)),
          gathered(values, batch.value.size(1)), of_scores};
}

at::Tensor in_float(const at::Tensor& tensor) { return tensor.to(at::kFloat); }

double scale_of(const c10::IValue& given, const at::Tensor& query) {
  return number(given, 1.0 / std::sqrt(static_cast<double>(query.size(-1))));
}
std::int64_t window(const c10::IValue& given) { return given.isNone() ? -1 : given.toInt(); }

// Draws the seed of a launch's dropout, which the backward pass needs.
std::uint64_t seed_from(const c10::IValue& generator) {
  const at::Tensor drawn = at::empty({1}, at::TensorOptions().dtype(at::kLong)).random_(generator.toGenerator());
  return static_cast<std::uint64_t>(drawn.data_ptr<std::int64_t>()[0]);
}
std::uint64_t first_word(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 ? *static_cast<const std::uint64_t*>(tensor.data_ptr()) : 0;
}
at::Tensor words(std::uint64_t first, at::IntArrayRef sizes, at::ScalarType dtype) {
  at::Tensor result = at::empty(sizes, at::TensorOptions().dtype(dtype));
  auto* data = static_cast<std::uint64_t*>(result.data_ptr());
  std::fill(data, data + result.numel(), 0);
  if (result.numel() > 0) {
    data[0] = first;
  }
  return result;
}

// The cumulative ends of packed sequences of different lengths.
struct Spans {
  std::vector<std::int64_t> query, key;
};

std::vector<std::int64_t> ends(const at::Tensor& cumulative) {
  const at::Tensor whole = cumulative.to(at::kLong).contiguous();
  return {whole.data_ptr<std::int64_t>(), whole.data_ptr<std::int64_t>() + whole.numel()};
}

// Returns sequence `i` of [total, heads, size] as a batch of one.
at::Tensor sequence(const at::Tensor& packed, const std::vector<std::int64_t>& ends, std::size_t i) {
  return swapped(packed.slice(0, ends[i], ends[i + 1]).unsqueeze(0));
}

Batch sequences(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const Spans& spans,
                std::size_t i) {
  return {sequence(query, spans.query, i), sequence(key, spans.key, i), sequence(value, spans.key, i), {}};
}

void place(const at::Tensor& packed, const std::vector<std::int64_t>& ends, std::size_t i, const at::Tensor& result) {
  packed.slice(0, ends[i], ends[i + 1]).copy_(swapped(result).squeeze(0));
}

// Arguments: query, key, value, cumulative lengths of queries and of keys, their maxima, dropout, causal, debug, scale,
// window to the left and to the right, ..., and the generator if there is dropout.
void flash_forward(const c10::OperatorHandle& op, Stack* stack) {
  const Stack a = *stack;
  const std::size_t arguments = op.schema().arguments().size();
  const at::Tensor query = tensor(a[0]);
  Mode mode{scale_of(a[10], query), a[8].toBool() ? Causal::from_bottom_right : Causal::no, window(a[11]),
            window(a[12]), a[7].toDouble()};
  mode.seed = mode.dropout > 0 ? seed_from(a[arguments]) : 0;
  const at::Tensor q = in_float(query), k = in_float(tensor(a[1])), v = in_float(tensor(a[2]));
  Forward result;
  if (tensor(a[3]).defined()) {
    const Spans spans{ends(tensor(a[3])), ends(tensor(a[4]))};
    result = {at::empty_like(q), at::zeros({q.size(1), q.size(0)})};
    for (std::size_t i = 0; i + 1 < spans.query.size(); ++i) {
      const Forward one = forward(sequences(q, k, v, spans, i), mode);
      place(result.output, spans.query, i, one.output);
      result.logsumexp.slice(1, spans.query[i], spans.query[i + 1]).copy_(one.logsumexp.squeeze(0));
    }
  } else {
    result = forward({swapped(q), swapped(k), swapped(v), {}}, mode);
    result.output = swapped(result.output);
  }
  answer(stack, {result.output.to(query.scalar_type()), result.logsumexp, words(mode.seed, {2}, at::kUInt64),
                 words(0, {}, at::kUInt64), at::empty({0}, query.options())});
}

// Arguments: the result's gradient, query, key, value, result, logsumexp, cumulative lengths of both, their maxima,
// dropout, causal, the generator's state, unused, scale, windows.
void flash_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor query = tensor(a[1]);
  const Mode mode{scale_of(a[14], query), a[11].toBool() ? Causal::from_bottom_right : Causal::no,
                  window(a[15]),          window(a[16]),
                  a[10].toDouble(),       first_word(tensor(a[12]))};
  const at::Tensor grad = in_float(tensor(a[0])), q = in_float(query), k = in_float(tensor(a[2])),
                   v = in_float(tensor(a[3]));
  Backward result;
  if (tensor(a[6]).defined()) {
    const Spans spans{ends(tensor(a[6])), ends(tensor(a[7]))};
    result = {at::empty_like(q), at::empty_like(k), at::empty_like(v), {}};
    for (std::size_t i = 0; i + 1 < spans.query.size(); ++i) {
      const Backward one = backward(sequences(q, k, v, spans, i), sequence(grad, spans.query, i), mode);
      place(result.query, spans.query, i, one.query);
      place(result.key, spans.key, i, one.key);
      place(result.value, spans.key, i, one.value);
    }
  } else {
    result = backward({swapped(q), swapped(k), swapped(v), {}}, swapped(grad), mode);
    result = {swapped(result.query), swapped(result.key), swapped(result.value), {}};
  }
  answer(stack, {result.query.to(query.scalar_type()), result.key.to(query.scalar_type()),
                 result.value.to(query.scalar_type())});
}

Causal causal_of(const c10::IValue& mask) { return static_cast<Causal>(mask.toInt()); }

// The memory-efficient kernel pads the rows of logsumexp to multiples of 32.
at::Tensor padded(const at::Tensor& logsumexp, bool wanted) {
  const std::int64_t rows = logsumexp.size(-1);
  at::DimVector sizes(logsumexp.sizes());
  sizes.back() = wanted ? (rows + 31) / 32 * 32 : 0;
  at::Tensor result = at::full(sizes, std::numeric_limits<float>::infinity(), logsumexp.options());
  if (wanted) {
    result.slice(-1, 0, rows).copy_(logsumexp);
  }
  return result;
}

// Arguments: query, key, value, bias, cumulative lengths of both, their maxima, dropout, type of mask, whether to
// compute logsumexp, scale, ...
void efficient_forward(const c10::OperatorHandle& op, Stack* stack) {
  const Stack a = *stack;
  const std::size_t arguments = op.schema().arguments().size();
  const at::Tensor query = tensor(a[0]);
  Mode mode{scale_of(a[11], query), causal_of(a[9]), a.size() > 13 && !a[13].isNone() ? a[13].toInt() - 1 : -1, -1,
            a[8].toDouble()};
  mode.seed = mode.dropout > 0 ? seed_from(a[arguments]) : 0;
  const at::Tensor q = in_float(query), k = in_float(tensor(a[1])), v = in_float(tensor(a[2]));
  Forward result;
  std::int64_t longest_query = q.size(1), longest_key = k.size(1);
  if (tensor(a[4]).defined()) {
    const Spans spans{ends(tensor(a[4])), ends(tensor(a[5]))};
    longest_query = a[6].toInt();
    longest_key = a[7].isNone() ? longest_key : a[7].toInt();
    const auto count = static_cast<std::int64_t>(spans.query.size()) - 1;
    const at::Tensor packed = at::empty({q.size(1), q.size(2), v.size(3)});
    result.logsumexp = at::zeros({count, q.size(2), longest_query});
    for (std::size_t i = 0; i + 1 < spans.query.size(); ++i) {
      const Forward one = forward(sequences(q.squeeze(0), k.squeeze(0), v.squeeze(0), spans, i), mode);
      place(packed, spans.query, i, one.output);
      result.logsumexp[static_cast<std::int64_t>(i)]
          .slice(-1, 0, one.logsumexp.size(-1))
          .copy_(one.logsumexp.squeeze(0));
    }
    result.output = packed.unsqueeze(0);
  } else {
    result = forward({swapped(q), swapped(k), swapped(v), tensor(a[3])}, mode);
    result.output = swapped(result.output);
  }
  answer(stack, {result.output.to(query.scalar_type()), padded(result.logsumexp, a[10].toBool()),
                 words(mode.seed, {}, at::kLong), words(0, {}, at::kLong), longest_query, longest_key});
}

// Arguments: the result's gradient, query, key, value, bias, result, cumulative lengths of both, their maxima,
// logsumexp, dropout, seed, offset, type of mask, whether the bias needs a gradient, scale, ...
void efficient_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor query = tensor(a[1]), bias = tensor(a[4]);
  const Mode mode{scale_of(a[16], query), causal_of(a[14]), -1, -1, a[11].toDouble(), first_word(tensor(a[12]))};
  const at::Tensor grad = in_float(tensor(a[0])), q = in_float(query), k = in_float(tensor(a[2])),
                   v = in_float(tensor(a[3]));
  const at::ScalarType dtype = query.scalar_type();
  if (tensor(a[6]).defined()) {
    const Spans spans{ends(tensor(a[6])), ends(tensor(a[7]))};
    const Backward result{at::empty_like(q), at::empty_like(k), at::empty_like(v), {}};
    for (std::size_t i = 0; i + 1 < spans.query.size(); ++i) {
      const Backward one = backward(sequences(q.squeeze(0), k.squeeze(0), v.squeeze(0), spans, i),
                                    sequence(grad.squeeze(0), spans.query, i), mode);
      place(result.query.squeeze(0), spans.query, i, one.query);
      place(result.key.squeeze(0), spans.key, i, one.key);
      place(result.value.squeeze(0), spans.key, i, one.value);
    }
    answer(stack, {result.query.to(dtype), result.key.to(dtype), result.value.to(dtype), at::Tensor()});
    return;
  }
  const Backward result = backward({swapped(q), swapped(k), swapped(v), bias}, swapped(grad), mode);
  answer(stack, {swapped(result.query).to(dtype), swapped(result.key).to(dtype), swapped(result.value).to(dtype),
                 bias.defined() && a[15].toBool() ? result.bias.sum_to_size(bias.sizes()).to(dtype) : at::Tensor()});
}

// Arguments: query, key, value as [batch, heads, length, size], bias, cumulative lengths of both, their maxima, whether
// to compute logsumexp, dropout, causal, debug, scale.
void cudnn_forward(const c10::OperatorHandle& op, Stack* stack) {
  const Stack a = *stack;
  const std::size_t arguments = op.schema().arguments().size();
  const at::Tensor query = tensor(a[0]);
  Mode mode{scale_of(a[12], query), a[10].toBool() ? Causal::from_top_left : Causal::no, -1, -1, a[9].toDouble()};
  mode.seed = mode.dropout > 0 ? seed_from(a[arguments]) : 0;
  const Forward result = forward({in_float(query), in_float(tensor(a[1])), in_float(tensor(a[2])), tensor(a[3])}, mode);
  answer(stack, {result.output.to(query.scalar_type()), a[8].toBool() ? result.logsumexp.unsqueeze(-1) : at::Tensor(),
                 at::Tensor(), at::Tensor(), a[6], a[7], words(mode.seed, {}, at::kLong), words(0, {}, at::kLong),
                 at::Tensor()});
}

void cudnn_forward_shape(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor query = tensor(a[0]), value = tensor(a[2]);
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor(a[4]).defined(),
                              "the simulated CUDA has cuDNN's attention for sequences of equal lengths only");
  // The result's memory has the order [batch, length, heads, size].
  const at::Tensor output =
      query.new_empty({query.size(0), query.size(2), query.size(1), value.size(3)}).transpose(1, 2);
  const auto options = query.options();
  const at::Tensor seed = at::empty({}, options.dtype(at::kLong));
  answer(stack, {output,
                 a[8].toBool() ? at::empty({query.size(0), query.size(1), query.size(2), 1}, options.dtype(at::kFloat))
                               : at::Tensor(),
                 at::Tensor(), at::Tensor(), a[6], a[7], seed, at::empty_like(seed), at::Tensor()});
}

// Arguments: the result's gradient, query, key, value, result, logsumexp, seed, offset, bias, cumulative lengths of
// both, their maxima, dropout, causal, scale.
void cudnn_attention_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::Tensor query = tensor(a[1]);
  const Mode mode{
      scale_of(a[15], query),  a[14].toBool() ? Causal::from_top_left : Causal::no, -1, -1, a[13].toDouble(),
      first_word(tensor(a[6]))};
  const Backward result = backward({in_float(query), in_float(tensor(a[2])), in_float(tensor(a[3])), tensor(a[8])},
                                   in_float(tensor(a[0])), mode);
  const at::ScalarType dtype = query.scalar_type();
  answer(stack, {result.query.to(dtype), result.key.to(dtype), result.value.to(dtype)});
}

void cudnn_backward_shape(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  answer(stack, {at::empty_like(tensor(a[1])), at::empty_like(tensor(a[2])), at::empty_like(tensor(a[3]))});
}

void by_meta(const c10::OperatorHandle& op, Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
}

// Unless they share one piece of memory, the gradients are contiguous, also of transposed inputs, whose strides the
// Meta kernel keeps: compiled code relies on what the calling operator's Meta kernel says.
void efficient_backward_shape(const c10::OperatorHandle& op, Stack* stack) {
  const auto shared = op.schema().argumentIndexWithName("shared_storage_dqdkdv");
  const bool separate = !shared || !(*stack)[static_cast<std::size_t>(*shared)].toBool();
  by_meta(op, stack);
  for (std::size_t i = 0; separate && i < 3; ++i) {
    const at::Tensor gradient = (*stack)[i].toTensor();
    (*stack)[i] = at::empty(gradient.sizes(), gradient.options());
  }
}

template <std::size_t place>
bool drops(const Stack& stack, std::size_t arguments) {
  return stack[stack.size() - arguments + place].toDouble() > 0;
}

}  // namespace

void add_attention(Registrar& registrar) {
  const auto add = [&](const char* name, operators::Shape shape, operators::Body body,
                       bool (*draws)(const Stack&, std::size_t) = nullptr) {
    operators::Recipe recipe;
    recipe.shape = std::move(shape);
    recipe.body = std::move(body);
    recipe.draws = draws;
    registrar.launched(name, std::move(recipe), How::own);
  };
  add("_flash_attention_forward", by_meta, flash_forward, drops<7>);
  add("_flash_attention_backward", by_meta, flash_backward);
  add("_efficient_attention_forward", by_meta, efficient_forward, drops<8>);
  add("_efficient_attention_backward", efficient_backward_shape, efficient_backward);
  add("_cudnn_attention_forward", cudnn_forward_shape, cudnn_forward, drops<9>);
  add("_cudnn_attention_backward", cudnn_backward_shape, cudnn_attention_backward);
  for (const char* name :
       {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward"}) {
    registrar.kept(name, "made of other operators");
  }
}

}  // namespace simcuda
