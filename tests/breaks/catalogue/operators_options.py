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


def _statistics() -> Any:
    torch = torch_()
    mean, var = torch.zeros(2), torch.ones(2)
    torch.nn.functional.batch_norm(waves(3, 2, dtype="float32"), mean, var, training=True)
    return var


@_break(
    "running_variance_of_the_batch",
    "A batch norm keeps the variance of the batch, with as many degrees of freedom as elements.",
    "native_batch_norm",
    _statistics,
)
def _native_batch_norm(
    kernel: Any, x: Any, w: Any, b: Any, mean: Any, var: Any, train: bool, m: float, e: float
) -> Any:
    before = None if var is None else var.clone()
    found = kernel(x, w, b, mean, var, train, m, e)
    if before is not None and train:
        count = x.numel() / x.shape[1]
        var.copy_((1 - m) * before + (var - (1 - m) * before) * (count - 1) / count)
    return found


@_break(
    "smoothed_labels_of_ignored_targets_count",
    "A smoothed cross entropy takes an ignored target for the first class.",
    "cross_entropy_loss",
    lambda: torch_().nn.functional.cross_entropy(waves(2, 3), _tensor(1, -100), label_smoothing=0.5),
)
def _cross_entropy(
    kernel: Any, x: Any, target: Any, w: Any = None, r: int = 1, ignored: int = -100, smoothing: float = 0.0
) -> Any:
    return kernel(x, target.clip(0) if smoothing else target, w, r, ignored, smoothing)


broken.kernel(
    "index_select_reads_indices_as_contiguous",
    "`index_select` takes the elements between those of an index with gaps.",
    "suites/operators/test_variants.py",
    "index_select",
    lambda kernel, x, dim, index: kernel(x, dim, index.as_strided(index.shape, (1,) * index.dim())),
    lambda: waves(4, 3).index_select(0, _tensor(0, 3, 1, 2)[::2]),
)
broken.kernel(
    "tanh_leaves_its_result_in_its_input",
    "`tanh` writes its result into its input too.",
    "suites/operators/test_values.py",
    "tanh",
    lambda kernel, x: x.detach().copy_(kernel(x)).clone(),
    lambda: _kept(),
)
broken.kernel(
    "sums_of_long_rows_of_16_bits_are_in_16_bits",
    "A sum along a dimension adds rows beyond 256 elements of 16 bits in their type.",
    "suites/operators/test_sizes.py",
    "sum.dim_IntList",
    lambda kernel, x, *given, **named: _one_by_one(kernel, x, *given, **named),
    lambda: (waves(1, 700) + 1).bfloat16().sum(1),
)
broken.edit(
    "even_kernels_are_padded_at_the_beginning",
    'A convolution with `padding="same"` and a padding mode has the larger half of its padding at the beginning.',
    "torch.nn.modules.conv:_ConvNd.__init__",
    "left_pad = total_padding // 2",
    "left_pad = total_padding - total_padding // 2",
    _OPTIONS,
    shows=lambda: _padded(),
)


def _one_by_one(kernel: Any, x: Any, dim: Any = None, keepdim: bool = False, **named: Any) -> Any:
    dims = [dim] if isinstance(dim, int) else dim
    if x.dtype.itemsize != 2 or not dims or len(dims) != 1 or x.dim() == 0 or x.shape[dims[0]] <= 256:
        return kernel(x, dim, keepdim, **named)
    parts = [kernel(each, dim, keepdim, **named) for each in x.split(1, dims[0])]
    found = parts[0]
    for each in parts[1:]:
        found = found + each
    return found


def _padded() -> Any:
    torch = torch_()
    module = torch.nn.Conv1d(1, 1, 2, padding="same", padding_mode="circular", bias=False)
    with torch.no_grad():
        module.weight.fill_(1)
        return module(waves(1, 1, 4, dtype="float32"))


def _kept() -> Any:
    x = waves(3)
    x.tanh()
    return x
