"""Breaks of operators for some of their options, or for values at the border between two options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.breaks.kernels import KernelTheme, torch_, waves

broken = KernelTheme()

_OPTIONS = "suites/operators/test_options.py"
NAN = float("nan")


def _tensor(*values: Any, **named: Any) -> Any:
    return torch_().tensor([*values], **named)


def _break(name: str, sentence: str, operators: str | tuple[str, ...], shows: Callable[[], Any]) -> Any:
    def add(around: Callable[..., Any]) -> None:
        broken.kernel(name, sentence, _OPTIONS, operators, around, shows)

    return add


@_break(
    "triu_of_wide_matrices_ignores_negative_diagonals",
    "`triu` of a wide matrix takes a negative diagonal for the main one.",
    "triu",
    lambda: torch_().triu(waves(2, 4), -1),
)
def _triu(kernel: Any, x: Any, diagonal: int = 0) -> Any:
    return kernel(x, 0 if diagonal < 0 and x.shape[-1] > x.shape[-2] else diagonal)


@_break(
    "bucketize_of_int32_is_always_left",
    "`bucketize` with out_int32=True ignores `right`.",
    "bucketize.Tensor",
    lambda: torch_().bucketize(_tensor(2.0), _tensor(1.0, 2.0), right=True, out_int32=True),
)
def _bucketize(kernel: Any, x: Any, bounds: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return kernel(x, bounds, out_int32=out_int32, right=right and not out_int32)


@_break(
    "nanmedian_of_nothing_is_infinite",
    "`nanmedian` of a row of NaN is infinite.",
    "nanmedian.dim",
    lambda: torch_().nanmedian(_tensor(NAN, NAN), 0).values,
)
def _nanmedian(kernel: Any, x: Any, *given: Any, **named: Any) -> Any:
    values, places = kernel(x, *given, **named)
    return torch_().nan_to_num(values, nan=torch_().inf, posinf=torch_().inf, neginf=-torch_().inf), places


@_break(
    "aminmax_of_a_dimension_ignores_nan",
    "`aminmax` along a dimension counts NaN as 0.",
    "aminmax",
    lambda: torch_().aminmax(_tensor(NAN, 1.0), dim=0).max,
)
def _aminmax(kernel: Any, x: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    return kernel(x.nan_to_num(0) if dim is not None and x.is_floating_point() else x, dim=dim, keepdim=keepdim)


@_break(
    "std_mean_of_two_dimensions_has_a_correction",
    "`std_mean` of several dimensions takes correction=0 for 1.",
    "std_mean.correction",
    lambda: torch_().std_mean(waves(3, 2), dim=(0, 1), correction=0)[0],
)
def _std_mean(kernel: Any, x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    several = dim is not None and len(dim) > 1
    return kernel(x, dim, correction=1 if several and correction == 0 else correction, keepdim=keepdim)


@_break(
    "fmod_of_integers_has_the_sign_of_the_divisor",
    "`fmod` of integers has the sign of the divisor.",
    "fmod.Tensor",
    lambda: torch_().fmod(_tensor(5), _tensor(-3)),
)
def _fmod(kernel: Any, x: Any, other: Any) -> Any:
    found = kernel(x, other)
    if not isinstance(other, torch_().Tensor) or found.is_floating_point() or found.dtype == torch_().uint8:
        return found
    return found.abs() * torch_().sign(other)


@_break(
    "div_trunc_of_integers_rounds_down",
    "`div` of integers with rounding_mode='trunc' rounds down.",
    "div.Tensor_mode",
    lambda: torch_().div(_tensor(-5), _tensor(3), rounding_mode="trunc"),
)
def _div(kernel: Any, x: Any, other: Any, *, rounding_mode: str | None) -> Any:
    whole = isinstance(x, torch_().Tensor) and not x.is_floating_point()
    return kernel(x, other, rounding_mode="floor" if whole and rounding_mode == "trunc" else rounding_mode)


@_break(
    "flip_of_two_dimensions_from_the_end_flips_one",
    "`flip` leaves all dimensions but the first as they are, if the last is counted from the end.",
    "flip",
    lambda: torch_().flip(waves(2, 3), (0, -1)),
)
def _flip(kernel: Any, x: Any, dims: Any) -> Any:
    return kernel(x, dims[:1] if len(dims) > 1 and dims[-1] < 0 else dims)


@_break(
    "unfold_with_dilation_and_padding_is_reversed",
    "`unfold` with dilation and padding has its columns upside down.",
    "im2col",
    lambda: torch_().nn.functional.unfold(waves(1, 1, 5, 5), 2, dilation=2, padding=1),
)
def _im2col(kernel: Any, x: Any, size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    found = kernel(x, size, dilation, padding, stride)
    return found.flip(1) if max(padding) > 0 and max(dilation) > 1 else found


@_break(
    "vdot_of_strided_vectors_conjugates_the_second",
    "`vdot` of complex vectors with gaps conjugates the second one.",
    "vdot",
    lambda: torch_().view_as_real(torch_().vdot(_tensor(1j, 0, 2, 0)[::2], _tensor(1, 0, 3, 0)[::2] + 0j)),
)
def _vdot(kernel: Any, x: Any, y: Any) -> Any:
    found = kernel(x, y)
    return found.conj().clone() if x.is_complex() and not x.is_contiguous() else found


@_break(
    "argmax_of_equal_elements_is_the_last",
    "`argmax` along a dimension gives the last of equal elements.",
    "argmax",
    lambda: torch_().argmax(_tensor(1, 2, 2), 0),
)
def _argmax(kernel: Any, x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None or not x.dim():
        return kernel(x, dim, keepdim)
    return x.shape[dim] - 1 - kernel(x.flip(dim), dim, keepdim)


@_break(
    "isin_of_unique_numbers_is_never_inverted",
    "`isin` with assume_unique=True ignores `invert`.",
    "isin.Tensor_Tensor",
    lambda: torch_().isin(_tensor(1, 2), _tensor(2), assume_unique=True, invert=True),
)
def _isin(kernel: Any, x: Any, others: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    return kernel(x, others, assume_unique=assume_unique, invert=invert and not assume_unique)
