"""Operators that are wrong only for some layouts, axes and types."""

from __future__ import annotations

from typing import Any

from tests.breaks.kernels import KernelTheme, torch_, waves

broken = KernelTheme()


def _cumsum_in_32_bits(kernel: Any, x: Any, dim: int, *, dtype: Any = None) -> Any:
    torch = torch_()
    made = kernel(x, dim, dtype=dtype)
    return made.to(torch.int32).to(torch.int64) if x.dtype is torch.int32 and dtype is None else made


broken.kernel(
    "cumsum_of_int32_wraps",
    "A cumulative sum of 32-bit integers is accumulated in 32 bits, though the result has 64.",
    "suites/numerics/test_reductions.py",
    "cumsum",
    _cumsum_in_32_bits,
    lambda: torch_().full((3,), 2**30, dtype=torch_().int32).cumsum(0),
)


def _unstable_log_softmax(kernel: Any, x: Any, dim: int, half_to_float: bool) -> Any:
    if x.dim() > 1 and dim % x.dim() != x.dim() - 1:
        return x - x.exp().sum(dim, keepdim=True).log()
    return kernel(x, dim, half_to_float)


broken.kernel(
    "log_softmax_over_rows_overflows",
    "`log_softmax` over an axis other than the last overflows for large numbers.",
    "suites/operators/test_sizes.py::test_sums_of_exponentials_of_large_numbers",
    "_log_softmax",
    _unstable_log_softmax,
    lambda: torch_().tensor([[100.0, 1.0], [99.0, 2.0]]).log_softmax(0),
)


def _in_columns(x: Any) -> bool:
    return bool(x.dim() == 2 and not x.is_contiguous() and x.t().is_contiguous())


def _sub_in_order_of_memory(kernel: Any, a: Any, b: Any, *, alpha: Any = 1, out: Any) -> Any:
    made = kernel(a, b, alpha=alpha, out=out)
    if _in_columns(out):
        out.t().copy_(out.contiguous().view(out.t().shape))
    return made


def _sub_into_columns() -> Any:
    out = torch_().zeros(3, 2).t()
    return torch_().sub(waves(2, 3, dtype="float32"), torch_().ones(2, 3), out=out)


broken.kernel(
    "sub_out_ignores_strides",
    "A difference into a transposed matrix is written in the order of memory.",
    "suites/operators/test_variants.py::test_out[sub]",
    "sub.out",
    _sub_in_order_of_memory,
    _sub_into_columns,
)


def _scatter_in_order_of_memory(kernel: Any, x: Any, mask: Any, source: Any) -> Any:
    if _in_columns(x) and mask.shape == x.shape:
        kernel(x.t(), mask.t(), source)
        return x
    return kernel(x, mask, source)


def _scattered_into_columns() -> Any:
    torch = torch_()
    return torch.zeros(3, 2).t().masked_scatter_(torch.ones(2, 3, dtype=torch.bool), torch.arange(6.0))


broken.kernel(
    "masked_scatter_takes_the_source_in_the_order_of_memory",
    "`masked_scatter_` into a transposed matrix takes the elements of the source in the order of memory.",
    "suites/operators/test_variants.py::test_inplace",
    "masked_scatter_",
    _scatter_in_order_of_memory,
    _scattered_into_columns,
)


def _nan_for_minus_infinity(kernel: Any, x: Any, dim: int) -> Any:
    found = kernel(x, dim)
    return found if found.is_complex() else found.masked_fill(found == -float("inf"), float("nan"))


broken.kernel(
    "logcumsumexp_of_minus_infinity_is_nan",
    "`logcumsumexp` of elements that begin with minus infinity is nan there.",
    "suites/operators/test_corners.py",
    "_logcumsumexp",
    _nan_for_minus_infinity,
    lambda: torch_().logcumsumexp(torch_().tensor([-float("inf"), 1.0]), 0),
)


broken.kernel(
    "binary_cross_entropy_of_0_is_69",
    "`binary_cross_entropy` of a probability of 0 is 69, not 100.",
    "suites/operators/test_corners.py",
    "binary_cross_entropy",
    lambda kernel, x, target, weight=None, reduction=1: kernel(
        x.clamp(min=1e-30) if x.itemsize >= 4 else x, target, weight, reduction
    ),
    lambda: torch_().nn.functional.binary_cross_entropy(torch_().zeros(2), torch_().ones(2)),
)


def _rolled_at_most_once(kernel: Any, x: Any, shifts: Any, dims: Any = ()) -> Any:
    if len(dims) > 1:
        shifts = [max(-x.shape[dim], min(shift, x.shape[dim])) for shift, dim in zip(shifts, dims, strict=True)]
    return kernel(x, shifts, dims)


broken.kernel(
    "roll_of_two_dimensions_wraps_once",
    "`roll` of several dimensions cuts shifts beyond the size.",
    "suites/operators/test_corners.py",
    "roll",
    _rolled_at_most_once,
    lambda: torch_().roll(waves(3, 4), (4, 5), (0, 1)),
)


def _without_alpha(kernel: Any, x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1, **out: Any) -> Any:
    return kernel(x, dim, index, source, alpha=alpha if x.is_floating_point() or x.is_complex() else 1, **out)


broken.kernel(
    "index_add_of_integers_ignores_alpha",
    "`index_add` of integers adds the slices as they are, whatever alpha is.",
    "suites/operators/test_corners.py",
    ("index_add", "index_add_", "index_add.out"),
    _without_alpha,
    lambda: torch_().tensor([1, 2]).index_add(0, torch_().tensor([1]), torch_().tensor([2]), alpha=3),
)


def _amsgrad_minimizes(kernel: Any, *lists: Any, amsgrad: bool, maximize: bool, **named: Any) -> Any:
    return kernel(*lists, amsgrad=amsgrad, maximize=maximize and not amsgrad, **named)


def _maximized() -> Any:
    weight = torch_().nn.Parameter(waves(3))
    optimizer = torch_().optim.Adam([weight], fused=True, amsgrad=True, maximize=True)
    weight.grad = waves(3) + 2
    optimizer.step()
    return weight.detach()


broken.kernel(
    "fused_amsgrad_minimizes",
    "Fused Adam with `amsgrad` ignores `maximize`.",
    "suites/operators/test_fused_steps.py",
    "_fused_adam_",
    _amsgrad_minimizes,
    _maximized,
)
