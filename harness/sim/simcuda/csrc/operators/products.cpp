// Matrix products with an explicit result type.
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>

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
// Arguments: summand, both factors, the result's type, beta, alpha.
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
void add_product(Registrar& registrar, const std::string& name) {
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
  add_product<mm>(registrar, "mm");
  add_product<bmm>(registrar, "bmm");
  add_product<addmm>(registrar, "addmm");
  add_product<baddbmm>(registrar, "baddbmm");
}

}  // namespace simcuda
