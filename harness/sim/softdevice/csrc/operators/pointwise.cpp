// The asynchronous pointwise operators; apart from the others so that two compilers can work on them.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O1")  // hundreds of signatures, each called once a launch: more takes minutes and gains nothing
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
