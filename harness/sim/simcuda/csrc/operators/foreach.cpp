// Operators on lists of tensors (`_foreach_add_` etc.). Where CUDA has one kernel for all tensors of the lists, they
// are one launch here. Otherwise they call one operator per tensor, as on CUDA.
#include <ATen/native/ForeachUtils.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bodies.h"
#include "own.h"
#include "rehearsal.h"
#include "rules.h"
#include "unobserved.h"

namespace simcuda {
namespace {

using operators::Launch;
using operators::Recipe;

// Runs the composite kernel, on tensors of any device: its operators go through the dispatcher.
void each_alone(const c10::OperatorHandle& op, Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

// Each result has the layout of a tensor in the first list. In one operator a number precedes that list.
void like_first(const c10::OperatorHandle& /*op*/, Stack* stack) {
  const c10::IValue& list = stack->front().isTensorList() ? stack->front() : (*stack)[1];
  c10::List<at::Tensor> results;
  for (const at::Tensor& tensor : list.toTensorVector()) {
    results.push_back(operators::rules::like(tensor));
  }
  answer(stack, {results});
}

void each_alone_unobserved(const c10::OperatorHandle& op, Stack* stack) {
  const operators::Unobserved unobserved;
  each_alone(op, stack);
}

// `operation` has no "_foreach_" and no overload.
Recipe together(const std::string& operation) {
  Recipe recipe;
  recipe.kernel = "multi_tensor_apply_kernel";
  recipe.check = rehearsal("_foreach_" + operation);
  if (operation == "norm" || operation == "powsum" || operation == "max") {
    recipe.shape = each_alone_unobserved;
  } else if (operation.back() != '_') {
    recipe.shape = like_first;
  }
  return recipe;
}

// The lists of tensors in the arguments, and the numbers that take part in type promotion.
struct Lists {
  std::vector<std::vector<at::Tensor>> tensors;
  std::vector<at::Scalar> numbers;
  at::Tensor other;  // a single tensor for all

  Lists(const c10::FunctionSchema& schema, Arguments arguments) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue& value = arguments[i];
      const c10::TypePtr& type = schema.arguments()[i].type();
      if (value.isTensorList()) {
        tensors.push_back(value.toTensorVector());
      } else if (value.isTensor()) {
        other = value.toTensor();
      } else if (type->kind() == c10::TypeKind::NumberType) {
        numbers.push_back(value.toScalar());
      } else if (const auto list = type->cast<c10::ListType>();
                 list && list->getElementType()->kind() == c10::TypeKind::NumberType) {
        for (const c10::IValue& number : value.toListRef()) {
          numbers.push_back(number.toScalar());
        }
      }
    }
  }

  // Whether the lists are valid: equally long, and not empty. The composite kernel refuses others.
  bool match() const {
    for (const std::vector<at::Tensor>& list : tensors) {
      if (list.empty() || list.size() != tensors.front().size()) {
        return false;
      }
    }
    return !tensors.empty() && (numbers.size() < 2 || numbers.size() == tensors.front().size());
  }
};

// Decides whether one kernel serves all tensors. The conditions are those of torch's native/cuda/Foreach*.cu.
class Route {
 public:
  // `operation` has no "_foreach_", no overload, and no "_" of an in-place operator.
  explicit Route(const std::string& operation)
      : norm_(among(operation, {"norm", "powsum"})),
        copy_(operation == "copy"),
        integers_(among(operation, {"abs", "max", "add", "sub", "mul", "neg", "zero", "clone", "copy"})),
        bools_(integers_ && !among(operation, {"sub", "neg"})),
        complex_(!norm_ && !among(operation, {"abs", "max", "ceil", "floor", "round", "trunc", "frac", "erf", "erfc",
                                              "lgamma", "sign", "clamp_max", "clamp_min", "maximum", "minimum"})) {}

  bool fast(const Lists& lists) const {
    if (!lists.match()) {
      return false;
    }
    const at::ScalarType dtype = lists.tensors.front().front().scalar_type();
    if (!takes(dtype) || (norm_ && !takes_order(lists.numbers.front().toDouble()))) {
      return false;
    }
    if (lists.other.defined() && (lists.other.is_cpu() || lists.other.scalar_type() != dtype)) {
      return false;
    }
    const std::vector<at::TensorList> all(lists.tensors.begin(), lists.tensors.end());
    if (copy_) {  // types may differ between the lists, but not within one
      return std::all_of(all.begin(), all.end(), &of_one_type) &&
             at::native::_check_tensors_share_device_and_dtype(all, /*skip_cross_list_dtype_check=*/true) &&
             at::native::_check_tensors_share_sizes_and_strides(all);
    }
    return at::native::can_use_fast_route(all, norm_ ? at::ArrayRef<at::Scalar>() : lists.numbers);
  }

 private:
  static bool among(const std::string& name, std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  static bool of_one_type(at::TensorList list) {
    const at::ScalarType first = list.front().scalar_type();
    return std::all_of(list.begin(), list.end(), [&](const at::Tensor& one) { return one.scalar_type() == first; });
  }
  static bool takes_order(double order) {
    return order == 0 || order == 1 || order == 2 || order == std::numeric_limits<double>::infinity();
  }
  bool takes(at::ScalarType dtype) const {
    if (dtype == at::kBool) {
      return bools_;
    }
    return at::isIntegralType(dtype, /*includeBool=*/false) ? integers_ : complex_ || !at::isComplexType(dtype);
  }

  const bool norm_, copy_;
  const bool integers_, bools_, complex_;  // types that have a kernel; floating-point types always have one
};

// The kernel of an operator on lists.
class Foreach final : public c10::OperatorKernel {
 public:
  explicit Foreach(const std::string& operation)
      : route_(operation.substr(0, operation.find_last_not_of('_') + 1)), launch_(together(operation)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const c10::FunctionSchema& schema = op.schema();
    const Lists lists(schema, Arguments(*stack).slice(stack->size() - schema.arguments().size()));
    if (!route_.fast(lists)) {
      each_alone(op, stack);
      return;
    }
    launch_(op, keys, stack);
    // autograd leaves the version counters of lists to the kernels
    const c10::AliasInfo* written = schema.arguments().front().alias_info();
    if (written != nullptr && written->isWrite()) {
      for (const at::Tensor& tensor : lists.tensors.front()) {
        tensor.unsafeGetTensorImpl()->bump_version();
      }
    }
  }

 private:
  const Route route_;
  Launch launch_;
};

// The kernel of an operator whose numbers are in a host tensor, which CUDA reads at the launch.
class NumbersOnHost final : public c10::OperatorKernel {
 public:
  explicit NumbersOnHost(c10::OperatorHandle plain) : plain_(std::move(plain)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
    const std::vector<at::Tensor> first = (*stack)[stack->size() - op.schema().arguments().size()].toTensorVector();
    const auto count = static_cast<std::int64_t>(first.size());
    stack->back() = at::native::convert_tensor_to_scalar_list(tensor(stack->back()), count);
    plain_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CUDA), stack);
  }

 private:
  const c10::OperatorHandle plain_;  // the same operator's overload for a list of numbers
};

torch::CppFunction kernel(const std::string& base, const std::string& overload) {
  if (overload == "Tensor" && (base.rfind("addcdiv", 0) == 0 || base.rfind("addcmul", 0) == 0)) {
    const c10::OperatorHandle plain =
        c10::Dispatcher::singleton().findSchemaOrThrow(("aten::_foreach_" + base).c_str(), "ScalarList");
    return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<NumbersOnHost>(plain));
  }
  return torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Foreach>(base));
}

}  // namespace

void add_foreach(Registrar& registrar, const std::set<std::string>& names) {
  const std::string prefix = "_foreach_";
  for (const std::string& name : names) {
    const std::size_t dot = name.find('.');
    const std::string base = name.substr(0, dot);
    if (name.rfind(prefix, 0) == 0 && base != "_foreach_mm") {  // matrix products are one operator per tensor
      registrar.boxed(name, kernel(base.substr(prefix.size()), dot == std::string::npos ? "" : name.substr(dot + 1)),
                      How::own);
    }
  }
}

}  // namespace simcuda
