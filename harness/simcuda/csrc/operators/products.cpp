// Products of matrices: those with a type of their own for the result, and what CUDA checks at the launch.
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

#include <set>
#include <string>

#include "bodies.h"
#include "own.h"
#include "rules.h"

namespace simcuda {
namespace {

// Arguments: both factors and the result's type.
at::Tensor mm(Arguments a) {
  const at::ScalarType dtype = a[2].toScalarType();
  return at::mm(tensor(a[0]).to(dtype), tensor(a[1]).to(dtype));
}
at::Tensor bmm(Arguments a) {
  const at::ScalarType dtype = a[2].toScalarType();
  return at::bmm(tensor(a[0]).to(dtype), tensor(a[1]).to(dtype));
}
// Arguments: what is added, both factors, the result's type, beta, alpha.
at::Tensor addmm(Arguments a) {
  const at::ScalarType dtype = a[3].toScalarType();
  return at::addmm(tensor(a[0]).to(dtype), tensor(a[1]).to(dtype), tensor(a[2]).to(dtype), a[4].toScalar(),
                   a[5].toScalar());
}
at::Tensor baddbmm(Arguments a) {
  const at::ScalarType dtype = a[3].toScalarType();
  return at::baddbmm(tensor(a[0]).to(dtype), tensor(a[1]).to(dtype), tensor(a[2]).to(dtype), a[4].toScalar(),
                     a[5].toScalar());
}

template <at::Tensor (*function)(Arguments)>
void add(Registrar& registrar, const std::string& name) {
  registrar.body(name + ".dtype",
                 [](const c10::OperatorHandle& /*op*/, Stack* stack) { answer(stack, {function(*stack)}); });
  registrar.body(name + ".dtype_out", [](const c10::OperatorHandle& /*op*/, Stack* stack) {
    const at::Tensor out = tensor(stack->back());
    const at::Tensor result = function(*stack);
    operators::rules::given(out, result.sizes()).copy_(result);
    answer(stack, {out});
  });
}

}  // namespace

void add_products(Registrar& registrar) {
  add<mm>(registrar, "mm");
  add<bmm>(registrar, "bmm");
  add<addmm>(registrar, "addmm");
  add<baddbmm>(registrar, "baddbmm");
}

operators::Recipe checked(const std::string& name, operators::Recipe recipe) {
  static const std::set<std::string> products = {
      "mm",       "mm.out",  "bmm",       "bmm.out",             "addmm",     "addmm.out",   "addmm_",     "baddbmm",
      "baddbmm.out", "baddbmm_", "addmv", "addmv.out", "addmv_", "_addmm_activation", "addbmm", "addbmm.out", "addbmm_"};
  if (products.count(name) == 0) {
    return recipe;
  }
  recipe.shape = [shape = std::move(recipe.shape)](const c10::OperatorHandle& op, Stack* stack) {
    at::ScalarType first = at::ScalarType::Undefined;
    const std::size_t count = op.schema().arguments().size();
    for (const c10::IValue& value : Arguments(*stack).slice(stack->size() - count)) {
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
    shape(op, stack);
  };
  return recipe;
}

}  // namespace simcuda
