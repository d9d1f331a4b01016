"""Breaks of operators for NaN, rows of minus infinity, and numbers far from zero."""

from __future__ import annotations

from typing import Any

from tests.breaks.kernels import KernelTheme, torch_

broken = KernelTheme()

_CASES = "suites/operators/test_special_inputs.py"
_NAN, _INF = float("nan"), float("inf")


def _row(*values: float) -> Any:
    return torch_().tensor([[*values]])


def _without_nan(kernel: Any, x: Any, *given: Any, **named: Any) -> Any:
    return kernel(x.nan_to_num(0.0, posinf=_INF, neginf=-_INF), *given, **named)


broken.kernel(
    "avg_pool_counts_nan_as_0",
    "An average over windows counts NaN as 0.",
    _CASES,
    "avg_pool2d",
    _without_nan,
    lambda: torch_().nn.functional.avg_pool2d(_row(_NAN, 1.0)[None], (1, 2)),
)
broken.kernel(
    "cumsum_starts_again_after_nan",
    "A cumulative sum counts NaN as 0.",
    _CASES,
    "cumsum",
    _without_nan,
    lambda: _row(_NAN, 1.0).cumsum(1),
)


def _softmax(kernel: Any, x: Any, *given: Any) -> Any:
    return kernel(x, *given).nan_to_num(0.0) if not x.isnan().any() else kernel(x, *given)


broken.kernel(
    "softmax_of_a_masked_row_is_0",
    "`softmax` of a row of minus infinity is 0.",
    _CASES,
    "_softmax",
    _softmax,
    lambda: _row(-_INF, -_INF).softmax(1),
)


def _variance(kernel: Any, x: Any, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Any:
    if not x.is_floating_point():
        return kernel(x, dim, correction=correction, keepdim=keepdim)
    square = (x * x).mean(dim or [*range(x.dim())], keepdim=keepdim)
    mean = x.mean(dim or [*range(x.dim())], keepdim=keepdim)
    count = x.numel() // max(mean.numel(), 1)
    return (square - mean * mean) * count / max(count - (1 if correction is None else correction), 0)


broken.kernel(
    "variance_is_a_difference_of_squares",
    "`var` subtracts the square of the mean from the mean of the squares.",
    _CASES,
    "var.correction",
    _variance,
    lambda: _row(1000.0, 1000.01, 1000.02).var(1),
)
