// The asynchronous pointwise operators; apart from the others so that two compilers can work on them.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O1")  // hundreds of signatures, each called once a launch: more takes minutes and gains nothing
#endif

#include <ATen/MetaFunctions.h>
#include <ATen/Operators.h>

#include "operators.h"

namespace soft::aten {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
#define SOFT_OPERATOR(op, function) add<at::_ops::op>(library, &at::meta::function);
#include "pointwise.def"
#undef SOFT_OPERATOR
}

}  // namespace soft::aten
