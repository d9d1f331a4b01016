// Recurrent layers: cuDNN's, and torch's fused cells. The backward of a whole layer runs the forward again on the CPU,
// with autograd.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gru.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "bodies.h"
#include "own.h"
#include "random.h"

namespace simcuda {
namespace {

enum class Cell { relu = 0, tanh = 1, lstm = 2, gru = 3 };  // cuDNN's numbers

// The arguments that forward and backward share, from `mode` on; `first` is the position of `mode`.
struct Layers {
  Cell cell;
  std::int64_t count;
  bool batch_first;
  double dropout;
  bool training, both_ways;
  std::vector<std::int64_t> batch_sizes;
  std::size_t weights_each;  // per layer and direction

  Layers(Arguments a, std::size_t first, std::size_t weights_each)
      : cell(static_cast<Cell>(a[first].toInt())),
        count(a[first + 3].toInt()),
        batch_first(a[first + 4].toBool()),
        dropout(a[first + 5].toDouble()),
        training(a[first + 6].toBool()),
        both_ways(a[first + 7].toBool()),
        batch_sizes(a[first + 8].toIntVector()),
        weights_each(weights_each) {}

  std::int64_t directions() const { return both_ways ? 2 : 1; }
  bool drops() const { return training && dropout > 0 && count > 1; }
};

struct States {
  at::Tensor output, hidden, cells;
};

// Runs one layer, in one or both directions.
States layer(const Layers& layers, const at::Tensor& input, at::TensorList weights, const at::Tensor& hidden,
             const at::Tensor& cells) {
  const bool biases = layers.weights_each >= 4;
  const bool packed = !layers.batch_sizes.empty();
  const at::Tensor sizes =
      packed ? at::empty({static_cast<std::int64_t>(layers.batch_sizes.size())}, at::TensorOptions().dtype(at::kLong))
             : at::Tensor();
  if (packed) {
    std::copy(layers.batch_sizes.begin(), layers.batch_sizes.end(), sizes.data_ptr<std::int64_t>());
  }
  if (layers.cell == Cell::lstm) {
    const auto result =
        packed ? at::lstm(input, sizes, {hidden, cells}, weights, biases, 1, 0.0, layers.training, layers.both_ways)
               : at::lstm(input, {hidden, cells}, weights, biases, 1, 0.0, layers.training, layers.both_ways,
                          layers.batch_first);
    return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
  }
  const auto simple = [&](auto&& whole, auto&& ragged) {
    const auto result = packed ? ragged() : whole();
    return States{std::get<0>(result), std::get<1>(result), {}};
  };
#define SIMPLE(function)                                                                               \
  simple(                                                                                              \
      [&] {                                                                                            \
        return at::function(input, hidden, weights, biases, 1, 0.0, layers.training, layers.both_ways, \
                            layers.batch_first);                                                       \
      },                                                                                               \
      [&] { return at::function(input, sizes, hidden, weights, biases, 1, 0.0, layers.training, layers.both_ways); })
  switch (layers.cell) {
    case Cell::gru:
      return SIMPLE(gru);
    case Cell::relu:
      return SIMPLE(rnn_relu);
    default:
      return SIMPLE(rnn_tanh);
  }
#undef SIMPLE
}

States run(const Layers& layers, at::Tensor input, const std::vector<at::Tensor>& weights, const at::Tensor& hidden,
           const at::Tensor& cells, std::uint64_t seed) {
  const std::size_t each = layers.weights_each * static_cast<std::size_t>(layers.directions());
  std::vector<at::Tensor> all_hidden, all_cells;
  for (std::int64_t i = 0; i < layers.count; ++i) {
    const auto mine = [&](const at::Tensor& states) {
      return states.defined() ? states.narrow(0, i * layers.directions(), layers.directions()) : at::Tensor();
    };
    const States one = layer(layers, input, at::TensorList(weights).slice(static_cast<std::size_t>(i) * each, each),
                             mine(hidden), mine(cells));
    all_hidden.push_back(one.hidden);
    if (one.cells.defined()) {
      all_cells.push_back(one.cells);
    }
    input = one.output;
    if (layers.drops() && i + 1 < layers.count) {
      const at::Tensor kept =
          at::empty_like(input.detach())
              .bernoulli_(1 - layers.dropout, operators::cpu_generator(seed, static_cast<std::uint64_t>(i)));
      input = input * kept / (1 - layers.dropout);
    }
  }
  return {input, at::cat(all_hidden), all_cells.empty() ? at::Tensor() : at::cat(all_cells)};
}

constexpr std::int64_t seed_bytes = 8;  // of the space that a forward pass reserves for its backward pass

// Arguments: input, weights, number of weights per layer, their buffer, hidden states, cells, and those of Layers.
void layers_forward(const c10::OperatorHandle& op, Stack* stack) {
  const Stack a = *stack;
  const Layers layers(a, 6, static_cast<std::size_t>(a[2].toInt()));
  const std::size_t arguments = op.schema().arguments().size();
  at::Tensor reserve = at::empty({seed_bytes}, at::TensorOptions().dtype(at::kByte)).zero_();
  auto* seed = static_cast<std::uint64_t*>(reserve.data_ptr());
  if (layers.drops()) {
    const at::Tensor drawn = at::empty({1}, at::TensorOptions().dtype(at::kLong)).random_(a[arguments].toGenerator());
    *seed = static_cast<std::uint64_t>(drawn.data_ptr<std::int64_t>()[0]);
  }
  const States result = run(layers, tensor(a[0]), a[1].toTensorVector(), tensor(a[4]), tensor(a[5]), *seed);
  answer(stack, {result.output, result.hidden, result.cells, reserve, tensor(a[3])});
}

void forward_shape(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const Layers layers(a, 6, static_cast<std::size_t>(a[2].toInt()));
  const at::Tensor input = tensor(a[0]), hidden = tensor(a[4]), cells = tensor(a[5]);
  at::DimVector sizes(input.sizes());
  sizes.back() = hidden.size(2) * layers.directions();
  at::Tensor output;
  if (layers.batch_first && layers.batch_sizes.empty()) {
    output = input.new_empty({sizes[1], sizes[0], sizes[2]}).transpose(0, 1);
  } else {
    output = input.new_empty(sizes);
  }
  const at::Tensor buffer = tensor(a[3]);
  answer(stack, {output, at::empty_like(hidden), cells.defined() ? at::empty_like(cells) : hidden.new_empty({0}),
                 input.new_empty({seed_bytes}, at::TensorOptions().dtype(at::kByte)),
                 buffer.defined() ? at::empty_like(buffer) : input.new_empty({0})});
}

bool drops(const Stack& stack, std::size_t arguments) {
  return Layers(Arguments(stack).slice(stack.size() - arguments), 6, 1).drops();
}

// Arguments: input, weights, number of weights per layer, their buffer, hidden states, cells, output, gradients of
// output, hidden states and cells, those of Layers from the eleventh on, the reserve, and which results to compute.
void layers_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const Layers layers(a, 10, static_cast<std::size_t>(a[2].toInt()));
  const at::Tensor reserve = tensor(a[20]);
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> leaves = {tensor(a[0]), tensor(a[4]), tensor(a[5])};
  const std::vector<at::Tensor> weights = a[1].toTensorVector();
  leaves.insert(leaves.end(), weights.begin(), weights.end());
  {
    const Taping taping;
    std::vector<at::Tensor> wanted;
    for (at::Tensor& leaf : leaves) {
      if (leaf.defined()) {
        leaf = leaf.detach().requires_grad_();
        wanted.push_back(leaf);
      }
    }
    const States result = run(layers, leaves[0], {leaves.begin() + 3, leaves.end()}, leaves[1], leaves[2],
                              *static_cast<const std::uint64_t*>(reserve.data_ptr()));
    std::vector<at::Tensor> outputs, seeds;
    const auto add = [&](const at::Tensor& output, const at::Tensor& grad) {
      if (output.defined() && grad.defined()) {
        outputs.push_back(output);
        seeds.push_back(grad);
      }
    };
    add(result.output, tensor(a[7]));
    add(result.hidden, tensor(a[8]));
    add(result.cells, tensor(a[9]));
    const auto found = torch::autograd::grad(outputs, wanted, seeds, false, false, /*allow_unused=*/true);
    std::size_t next = 0;
    for (const at::Tensor& leaf : leaves) {
      at::Tensor gradient = leaf.defined() ? found[next++] : at::Tensor();
      gradients.push_back(leaf.defined() && !gradient.defined() ? at::zeros_like(leaf.detach()) : gradient);
    }
  }
  const c10::List<bool> mask = a[21].toBoolList();
  c10::List<at::Tensor> of_weights;
  for (std::size_t i = 3; mask.get(3) && i < gradients.size(); ++i) {
    of_weights.push_back(gradients[i]);
  }
  const auto masked = [&](std::size_t i) { return mask.get(i) ? gradients[i] : at::Tensor(); };
  answer(stack, {masked(0), masked(1), masked(2), of_weights});
}

void backward_shape(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const c10::List<bool> mask = a[21].toBoolList();
  const auto like = [&](const c10::IValue& value, std::size_t i) {
    return tensor(value).defined() && mask.get(i) ? at::empty_like(tensor(value)) : at::Tensor();
  };
  c10::List<at::Tensor> of_weights;
  if (mask.get(3)) {
    for (const at::Tensor& weight : a[1].toTensorVector()) {
      of_weights.push_back(at::empty_like(weight));
    }
  }
  answer(stack, {like(a[0], 0), like(a[4], 1), like(a[5], 2), of_weights});
}

// Moves all weights into one buffer and makes them views of it.
void flatten(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  const std::vector<at::Tensor> weights = (*stack)[stack->size() - count].toTensorVector();
  torch::jit::drop(*stack, count);
  std::int64_t total = 0;
  for (const at::Tensor& weight : weights) {
    total += weight.numel();
  }
  const at::Tensor buffer = weights.front().new_empty({total});
  std::int64_t place = 0;
  for (at::Tensor weight : weights) {
    const at::Tensor part = buffer.narrow(0, place, weight.numel()).view(weight.sizes());
    place += weight.numel();
    part.copy_(weight);
    weight.set_data(part);
  }
  stack->emplace_back(buffer);
}

at::Tensor with(const at::Tensor& gates, const c10::IValue& bias) {
  return tensor(bias).defined() ? gates + wide(tensor(bias)) : gates;
}

// Arguments: gates of input and of hidden state, cells, both biases.
void lstm_cell(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::ScalarType dtype = tensor(a[0]).scalar_type();
  const auto gates = (with(wide(tensor(a[0])), a[3]) + with(wide(tensor(a[1])), a[4])).chunk(4, 1);
  const at::Tensor in = gates[0].sigmoid(), forget = gates[1].sigmoid(), cell = gates[2].tanh(),
                   out = gates[3].sigmoid();
  const at::Tensor cells = forget * wide(tensor(a[2])) + in * cell;
  answer(stack, {(out * cells.tanh()).to(dtype), cells.to(dtype), at::cat({in, forget, cell, out}, 1).to(dtype)});
}

// Arguments: gradients of hidden state and cells, cells before and after the step, the gates, whether there are biases.
void lstm_cell_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::ScalarType dtype = tensor(a[4]).scalar_type();
  const auto gates = wide(tensor(a[4])).chunk(4, 1);
  const at::Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const at::Tensor before = wide(tensor(a[2])), bent = wide(tensor(a[3])).tanh();
  const at::Tensor of_hidden = tensor(a[0]).defined() ? wide(tensor(a[0])) : at::zeros_like(before);
  at::Tensor of_cells = of_hidden * out * (1 - bent.square());
  if (tensor(a[1]).defined()) {
    of_cells = of_cells + wide(tensor(a[1]));
  }
  const at::Tensor of_gates = at::cat({of_cells * cell * in * (1 - in), of_cells * before * forget * (1 - forget),
                                       of_cells * in * (1 - cell.square()), of_hidden * bent * out * (1 - out)},
                                      1)
                                  .to(dtype);
  answer(stack, {of_gates, (of_cells * forget).to(dtype), a[5].toBool() ? of_gates.sum(0) : at::Tensor()});
}

// Arguments: gates of input and of hidden state, hidden state, both biases.
void gru_cell(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::ScalarType dtype = tensor(a[0]).scalar_type();
  const auto of_input = with(wide(tensor(a[0])), a[3]).chunk(3, 1),
             of_hidden = with(wide(tensor(a[1])), a[4]).chunk(3, 1);
  const at::Tensor hidden = wide(tensor(a[2]));
  const at::Tensor reset = (of_input[0] + of_hidden[0]).sigmoid(), update = (of_input[1] + of_hidden[1]).sigmoid();
  const at::Tensor fresh = (of_input[2] + reset * of_hidden[2]).tanh();
  answer(stack, {(fresh + update * (hidden - fresh)).to(dtype),
                 at::cat({reset, update, fresh, hidden, of_hidden[2]}, 1).to(dtype)});
}

// Arguments: the hidden state's gradient, the forward's workspace, whether there are biases.
void gru_cell_backward(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const Stack a = *stack;
  const at::ScalarType dtype = tensor(a[0]).scalar_type();
  const at::Tensor grad = wide(tensor(a[0]));
  const auto kept = wide(tensor(a[1])).chunk(5, 1);
  const at::Tensor &reset = kept[0], &update = kept[1], &fresh = kept[2], &hidden = kept[3], &gate = kept[4];
  const at::Tensor of_update = grad * (hidden - fresh) * update * (1 - update);
  const at::Tensor of_fresh = grad * (1 - update) * (1 - fresh.square());
  const at::Tensor of_reset = of_fresh * gate * reset * (1 - reset);
  const at::Tensor of_input = at::cat({of_reset, of_update, of_fresh}, 1).to(dtype);
  const at::Tensor of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1).to(dtype);
  const bool biases = a[2].toBool();
  answer(stack, {of_input, of_hidden, (grad * update).to(dtype), biases ? of_input.sum(0) : at::Tensor(),
                 biases ? of_hidden.sum(0) : at::Tensor()});
}

}  // namespace

void add_recurrent(Registrar& registrar) {
  operators::Recipe recipe;
  recipe.shape = forward_shape;
  recipe.body = layers_forward;
  recipe.draws = drops;
  registrar.launched("_cudnn_rnn", recipe, How::own);
  recipe.shape = backward_shape;
  recipe.body = layers_backward;
  recipe.draws = nullptr;
  registrar.launched("_cudnn_rnn_backward", recipe, How::own);
  registrar.boxed("_cudnn_rnn_flatten_weight", torch::CppFunction::makeFromBoxedFunction<&flatten>(), How::own);
  registrar.body("_thnn_fused_lstm_cell", lstm_cell);
  registrar.body("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  registrar.body("_thnn_fused_gru_cell", gru_cell);
  registrar.body("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace simcuda
