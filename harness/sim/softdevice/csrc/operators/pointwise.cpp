// The asynchronous pointwise operators, in their own file so that two compilers can run in parallel.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O1")  // hundreds of signatures, each called once per launch: -O2 takes minutes and gains nothing
#endif

#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>

#include "operators.h"

namespace operators {

void add_pointwise(const Add& add) {
#define OPERATOR(op, function) add_shaped<at::_ops::op>(add, &at::meta::function);
#include "pointwise.def"
#undef OPERATOR
}

}  // namespace operators
