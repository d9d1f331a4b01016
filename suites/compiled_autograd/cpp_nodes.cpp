// Autograd functions of each kind that compiled autograd distinguishes: traceable or not, with saved values of every
// type. Their gradients depend on the saved values, so that a lost or stale value changes the result.

#include <ATen/Tensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

// Identity; doubles the gradient.
struct Twice : public Function<Twice> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext*, const Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, const variable_list& grads) { return {grads[0] * 2}; }
};

// Identity; doubles the gradient. The same code as another function.
struct TwiceToo : public Function<TwiceToo> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext*, const Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, const variable_list& grads) { return {grads[0] * 2}; }
};

// Identity; multiplies the gradient by 3 if its sum is positive, otherwise by 4, which a tracer cannot decide.
struct NotTraceable : public Function<NotTraceable> {
  static constexpr bool is_traceable = false;
  static Tensor forward(AutogradContext*, const Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    return {grads[0] * (grads[0].sum().item<double>() > 0 ? 3 : 4)};
  }
};

// Identity; the gradient is x + y plus the sum of a third tensor and numbers from values of other types.
struct SavedOfEveryKind : public Function<SavedOfEveryKind> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y, const Tensor& fixed) {
    ctx->save_for_backward({x, y});
    ctx->saved_data["tensor"] = fixed;
    ctx->saved_data["bool"] = true;
    ctx->saved_data["int"] = 1;
    ctx->saved_data["float"] = 0.5;
    ctx->saved_data["string"] = "text";
    ctx->saved_data["strings"] = c10::List<std::string>({"one", "two"});
    c10::Dict<std::string, double> dict;
    dict.insert("key", 4.0);
    ctx->saved_data["dict"] = std::move(dict);
    return x.clone();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    TORCH_CHECK(saved.size() == 2, "two tensors were saved, not ", saved.size());
    auto& data = ctx->saved_data;
    TORCH_CHECK(data["bool"].isBool() && data["bool"].toBool(), "true was saved");
    TORCH_CHECK(data["string"].toStringRef() == "text", "a text was saved");
    const auto strings = data["strings"].toList();
    TORCH_CHECK(strings.size() == 2 && strings.get(1).toStringRef() == "two", "a list of texts was saved");
    const auto dict = data["dict"].toGenericDict();
    TORCH_CHECK(dict.size() == 1, "a dictionary of one was saved");
    const auto number = data["int"].toInt() + dict.at("key").toDouble() + data["float"].toDouble();
    return {grads[0] * (saved[0] + saved[1] + data["tensor"].toTensor().sum() + number), Tensor(), Tensor()};
  }
};

// Identity; the gradient is x plus the sum of a view of x, which is saved in addition.
struct SavedView : public Function<SavedView> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    ctx->saved_data["view"] = x.view(-1);
    return x.clone();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {grads[0] * (saved[0] + ctx->saved_data["view"].toTensor().sum())};
  }
};

// Identity; multiplies the gradient by `number`.
struct SavedInteger : public Function<SavedInteger> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext* ctx, const Tensor& x, int64_t number) {
    ctx->saved_data["number"] = number;
    return x.clone();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0] * ctx->saved_data["number"].toSymInt(), Tensor()};
  }
};

struct SavedFloat : public Function<SavedFloat> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext* ctx, const Tensor& x, double number) {
    ctx->saved_data["number"] = number;
    return x.clone();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0] * ctx->saved_data["number"].toSymFloat(), Tensor()};
  }
};

// Identity of x and y; saves values according to `kind`: 0 two tensors and a number, 1 an additional value, 2 as 0 but
// without materialized gradients. The gradient of x is x + y + number, plus 100 or 1000 for kinds 1 and 2.
struct DataDependent : public Function<DataDependent> {
  static constexpr bool is_traceable = true;
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& y, int64_t kind) {
    ctx->save_for_backward({x, y});
    ctx->saved_data["number"] = 1;
    if (kind == 1) {
      ctx->saved_data["more"] = 100;
    }
    if (kind == 2) {
      ctx->set_materialize_grads(false);
    }
    return {x.clone(), y.clone()};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto& data = ctx->saved_data;
    auto gradient = saved[0] + saved[1] + data["number"].toSymInt();
    if (data.count("more")) {
      gradient = gradient + data["more"].toSymInt();
    }
    if (!grads[1].defined()) {
      gradient = gradient + 1000;
    }
    return {gradient, Tensor(), Tensor()};
  }
};

// Identity; multiplies the gradient by 2 and 3: a scalar CPU tensor, and a number saved in addition.
struct HostScalar : public Function<HostScalar> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x, at::scalar_tensor(2, at::kLong)});
    ctx->saved_data["number"] = 3;
    return x.clone();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    return {grads[0] * at::ones_like(saved[0]) * saved[1] * ctx->saved_data["number"].toInt()};
  }
};

}  // namespace

TORCH_LIBRARY(conformance_nodes, m) {
  m.def("twice", [](const Tensor& x) -> Tensor { return Twice::apply(x); });
  m.def("twice_too", [](const Tensor& x) -> Tensor { return TwiceToo::apply(x); });
  m.def("not_traceable", [](const Tensor& x) -> Tensor { return NotTraceable::apply(x); });
  m.def("saved_of_every_kind", [](const Tensor& x, const Tensor& y, const Tensor& fixed) -> Tensor {
    return SavedOfEveryKind::apply(x, y, fixed);
  });
  m.def("saved_view", [](const Tensor& x) -> Tensor { return SavedView::apply(x); });
  m.def("saved_integer", [](const Tensor& x, int64_t number) -> Tensor { return SavedInteger::apply(x, number); });
  m.def("saved_float", [](const Tensor& x, double number) -> Tensor { return SavedFloat::apply(x, number); });
  m.def("data_dependent", [](const Tensor& x, const Tensor& y, int64_t kind) -> std::vector<Tensor> {
    return DataDependent::apply(x, y, kind);
  });
  m.def("host_scalar", [](const Tensor& x) -> Tensor { return HostScalar::apply(x); });
}
