"""Options that samples of torch's catalogue do not combine, and values at their limits: compared with NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from .comparison import Bound
from .references.formats import Array
from .single import CPU_OR_CUDA, exactly, given, same

pytestmark = CPU_OR_CUDA
NAN, INF = float("nan"), float("inf")


def layouts(array: Array, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """Return tensors with these elements: contiguous, column-major, and with gaps."""
    together = given(array, dtype, device)
    columns = together.mT.contiguous().mT if array.ndim > 1 else together
    return [together, columns, torch.stack([together, together], -1)[..., 0]]


@pytest.mark.operator("tril", "triu")
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("shape", [(2, 4), (4, 2), (3, 3), (2, 3, 5), (2, 0, 3)], ids=str)
def test_tril_and_triu_of_each_diagonal(shape: tuple[int, ...], dtype: str, device: torch.device) -> None:
    """`tril` and `triu` keep their side of any diagonal, also outside, for wide, high and empty matrices (NumPy)."""
    kind = getattr(torch, dtype)
    array = np.ones(shape, bool) if kind == torch.bool else np.arange(1, np.prod(shape) + 1).reshape(shape)
    for x, diagonal in itertools.product(layouts(array, kind, device), range(-5, 6)):
        same(torch.tril(x, diagonal), np.tril(array, diagonal), f"tril, {diagonal}")
        same(torch.triu(x, diagonal), np.triu(array, diagonal), f"triu, {diagonal}")


@pytest.mark.operator("bucketize", "searchsorted")
@pytest.mark.filterwarnings("ignore:.*non-contiguous:UserWarning")
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
@pytest.mark.parametrize("right", [False, True], ids=["left", "right"])
@pytest.mark.parametrize("narrow", [False, True], ids=["int64", "int32"])
def test_bucketize_and_searchsorted_of_equal_numbers(
    narrow: bool, right: bool, dtype: str, device: torch.device
) -> None:
    """`bucketize` and `searchsorted` return places before or after equal numbers, as 64- or 32-bit integers (NumPy)."""
    kind = getattr(torch, dtype)
    bounds, values = np.array([1, 3, 3, 3, 7]), np.array([[0, 1, 2, 3], [4, 7, 8, 3]])
    wanted = np.searchsorted(bounds, values, "right" if right else "left")
    sorts = given(bounds, kind, device)
    for x in layouts(values, kind, device):
        for found in (
            torch.bucketize(x, sorts, out_int32=narrow, right=right),
            torch.searchsorted(sorts, x, out_int32=narrow, right=right),
            torch.searchsorted(sorts, x, out_int32=narrow, side="right" if right else "left"),
        ):
            assert found.dtype == (torch.int32 if narrow else torch.int64)
            same(found, wanted, "bucketize")


@pytest.mark.operator("nanmedian", "median")
@pytest.mark.parametrize("keepdim", [False, True])
def test_nanmedian_and_median_of_rows_with_nan(keepdim: bool, device: torch.device) -> None:
    """`nanmedian` is the lower median of the numbers, and NaN without numbers; `median` is NaN if there is a NaN.

    The index is that of an element with the value.
    """
    array = np.array([[NAN] * 4, [NAN, 2, NAN, 1], [4, 3, 2, 1], [NAN, NAN, NAN, -INF], [INF, NAN, 5, 4]])
    numbers = [np.sort(row[~np.isnan(row)]) for row in array]
    nan_free = np.array([row[(len(row) - 1) // 2] if len(row) else NAN for row in numbers])
    median = np.where(np.isnan(array).any(1), NAN, nan_free)
    for x in layouts(array, torch.float32, device):
        for run, wanted in ((torch.nanmedian, nan_free), (torch.median, median)):
            values, places = run(x, 1, keepdim)
            same(values, wanted[:, None] if keepdim else wanted, run.__name__)
            at = x.gather(1, places if keepdim else places[:, None])
            same(at, wanted[:, None], f"{run.__name__}, elements at the places")
    same(torch.nanmedian(given(array, torch.float32, device)), 2, "nanmedian of all")


@pytest.mark.operator("aminmax", "amin", "amax", "min", "max")
@pytest.mark.parametrize("keepdim", [False, True])
def test_aminmax_and_its_like_of_nan(keepdim: bool, device: torch.device) -> None:
    """The smallest and the largest of numbers with a NaN are NaN, along each dimension (torch.amax; NumPy)."""
    array = np.array([[1, NAN, -INF, 2], [3, 0, INF, -2], [-1, -3, -2, NAN]])
    for x, dim in itertools.product(layouts(array, torch.float32, device), (0, 1, -1, -2)):
        low, high = array.min(dim, keepdims=keepdim), array.max(dim, keepdims=keepdim)
        both = torch.aminmax(x, dim=dim, keepdim=keepdim)
        for found, wanted in (
            (both.min, low),
            (both.max, high),
            (torch.amin(x, dim, keepdim), low),
            (torch.amax(x, dim, keepdim), high),
            (torch.min(x, dim, keepdim).values, low),
            (torch.max(x, dim, keepdim).values, high),
        ):
            same(found, wanted, f"extremes along {dim}")


@pytest.mark.operator("std", "var", "std_mean", "var_mean")
@pytest.mark.types("float64")
@pytest.mark.parametrize("dims", [(0,), (0, 2), (-1, 1), (0, 1, 2), None], ids=str)
@pytest.mark.parametrize("correction", [0, 1, 2, 0.5])
def test_var_and_std_of_each_correction_and_dimension(
    dims: tuple[int, ...] | None, correction: float, device: torch.device, rng: np.random.Generator
) -> None:
    """Variances, deviations and means of any dimensions have the requested degrees of freedom (NumPy)."""
    array = rng.uniform(1, 2, (3, 4, 5))
    bound = Bound(64, 0, 1e-13)
    for x, keepdim in itertools.product(layouts(array, torch.float64, device), (False, True)):
        asked: Any = {"dim": dims, "correction": correction, "keepdim": keepdim}
        mean = array.mean(dims, keepdims=keepdim)
        count = array.size / mean.size
        variance = array.var(dims, keepdims=keepdim) * count / (count - correction)
        same(torch.var(x, **asked), variance, "var", bound)
        same(torch.std(x, **asked), np.sqrt(variance), "std", bound)
        for run, spread in ((torch.var_mean, variance), (torch.std_mean, np.sqrt(variance))):
            found = run(x, **asked)
            same(found[0], spread, run.__name__, bound)
            same(found[1], mean, f"{run.__name__}, mean", bound)


@pytest.mark.operator("div", "floor_divide", "remainder", "fmod")
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_division_of_integers_of_each_sign(dtype: str, device: torch.device) -> None:
    """Quotients are rounded down or toward zero, and remainders have the sign of the divisor or of the dividend.

    The divisor is a tensor or a number.
    """
    kind = getattr(torch, dtype)
    dividends = np.array(
        [7, 6, 5, 0, 1, 100] if dtype == "uint8" else [-7, -6, -5, 0, 5, 6, 7, -1, 1, 100, -100], dtype
    )
    divisors = np.array([1, 3, 6, 7] if dtype == "uint8" else [1, 3, 6, -1, -3, -7], dtype)
    a, b = (each.astype(np.int64) for each in np.meshgrid(dividends, divisors, indexing="ij"))
    toward_zero = np.trunc(a / b).astype(np.int64)
    for x, y in zip(layouts(a, kind, device), layouts(b, kind, device), strict=True):
        same(torch.div(x, y, rounding_mode="floor"), a // b, "div, floor")
        same(torch.floor_divide(x, y), a // b, "floor_divide")
        same(torch.div(x, y, rounding_mode="trunc"), toward_zero, "div, trunc")
        same(torch.remainder(x, y), a % b, "remainder")
        same(torch.fmod(x, y), a - toward_zero * b, "fmod")
        for column, number in enumerate(divisors.tolist()):
            part = x[:, column]
            same(torch.div(part, number, rounding_mode="trunc"), toward_zero[:, column], f"div by {number}, trunc")
            same(torch.div(part, number, rounding_mode="floor"), (a // b)[:, column], f"div by {number}, floor")
            same(torch.remainder(part, number), (a % b)[:, column], f"remainder of {number}")
            same(torch.fmod(part, number), (a - toward_zero * b)[:, column], f"fmod of {number}")


@pytest.mark.operator("flip")
@pytest.mark.parametrize("dtype", ["float32", "uint8", "complex64", "bool"])
def test_flip_of_each_set_of_dimensions(dtype: str, device: torch.device) -> None:
    """Any set of dimensions, counted from either end, in any order, is reversed (NumPy)."""
    kind = getattr(torch, dtype)
    array = np.arange(24).reshape(2, 3, 4) % (2 if kind == torch.bool else 24)
    for x in layouts(array, kind, device):
        for dims in ((), (0,), (-1,), (0, -1), (-2, 0), (1, 2), (-1, -3, 1)):
            same(torch.flip(x, dims), np.flip(array, dims), f"flip of {dims}")


@pytest.mark.operator("nn.functional.unfold", "nn.functional.fold", "im2col", "col2im")
@pytest.mark.parametrize("padding", [(0, 0), (1, 2)], ids=["no padding", "padding"])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)], ids=str)
def test_unfold_and_fold_of_windows(
    stride: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int],
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    """`unfold` has a column for each window of the padded image, and `fold` adds the columns at their places."""
    size, kernel = (6, 7), (2, 3)
    array = rng.integers(-9, 10, (2, 3, *size))
    padded = np.pad(array, ((0, 0), (0, 0), *((each, each) for each in padding)))
    counts = [
        (size[each] + 2 * padding[each] - dilation[each] * (kernel[each] - 1) - 1) // stride[each] + 1
        for each in (0, 1)
    ]
    windows = [
        tuple(
            slice(at * stride[d], at * stride[d] + dilation[d] * kernel[d], dilation[d]) for d, at in enumerate(place)
        )
        for place in itertools.product(*map(range, counts))
    ]
    columns = np.stack([padded[(..., *window)].reshape(2, -1) for window in windows], -1)
    summed = np.zeros_like(padded)
    for number, window in enumerate(windows):
        summed[(..., *window)] += columns[..., number].reshape(2, 3, *kernel)
    inner = summed[:, :, padding[0] : padding[0] + size[0], padding[1] : padding[1] + size[1]]

    options: Any = {"kernel_size": kernel, "dilation": dilation, "padding": padding, "stride": stride}
    for x in layouts(array, torch.float32, device):
        same(torch.nn.functional.unfold(x, **options), columns, "unfold")
    for x in layouts(columns, torch.float32, device):
        same(torch.nn.functional.fold(x, size, **options), inner, "fold")


@pytest.mark.operator("dot", "vdot", "inner")
@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float32"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_dot_and_vdot_of_views(step: int, dtype: str, device: torch.device, rng: np.random.Generator) -> None:
    """`vdot` conjugates its first argument and `dot` none, also for views with gaps and conjugate views."""
    kind = getattr(torch, dtype)
    a, b = (rng.integers(-5, 6, 24) + (1j * rng.integers(-5, 6, 24) if kind.is_complex else 0) for _ in range(2))
    x, y = given(a, kind, device)[::step], given(b, kind, device)[::step]
    u, v = a[::step], b[::step]
    same(torch.vdot(x, y), np.vdot(u, v), "vdot")
    same(torch.dot(x, y), np.dot(u, v), "dot")
    same(torch.inner(x, y), np.inner(u, v), "inner")
    for left, right in ((True, False), (False, True), (True, True)):
        first, second = x.conj() if left else x, y.conj() if right else y
        one, two = u.conj() if left else u, v.conj() if right else v
        same(torch.vdot(first, second), np.vdot(one, two), "vdot of conjugates")
        same(torch.dot(first, second), np.dot(one, two), "dot of conjugates")


@pytest.mark.operator("isin")
@pytest.mark.parametrize("unique", [False, True], ids=["any", "unique"])
@pytest.mark.parametrize("invert", [False, True], ids=["in", "not in"])
@pytest.mark.parametrize("tests", [0, 1, 3, 40, 400])
def test_isin_of_few_and_of_many(
    tests: int, invert: bool, unique: bool, device: torch.device, rng: np.random.Generator
) -> None:
    """`isin` finds elements among few others, which are compared one by one, and among many."""
    elements = rng.permutation(600)[:60].reshape(6, 10)
    others = rng.permutation(600)[:tests]
    if not unique:
        elements, others = elements // 3, others // 3
    wanted = np.isin(elements, others, invert=invert)
    for x in layouts(elements, torch.int64, device):
        found = torch.isin(x, given(others, torch.int64, device), assume_unique=unique, invert=invert)
        same(found, wanted, "isin")


@pytest.mark.operator("argmax", "argmin")
@pytest.mark.parametrize("dtype", ["int64", "uint8", "float32", "bfloat16"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_argmax_and_argmin_of_equal_elements_are_the_first(
    keepdim: bool, dtype: str, device: torch.device, rng: np.random.Generator
) -> None:
    """The first of several largest or smallest elements counts (torch.argmax), also in long rows and of all."""
    kind = getattr(torch, dtype)
    for shape in ((3, 4, 5), (2, 3000), (2000, 3), (1, 1)):
        array = rng.integers(0, 3, shape)
        for x, dim in itertools.product(layouts(array, kind, device), (*range(-len(shape), len(shape)), None)):
            for run, expect in ((torch.argmax, np.argmax), (torch.argmin, np.argmin)):
                if dim is None:
                    same(run(x), expect(array), f"{run.__name__} of all")
                else:
                    same(run(x, dim, keepdim), expect(array, dim, keepdims=keepdim), f"{run.__name__} along {dim}")


#: Each way to call a batch norm in training: input, running mean and variance, and momentum.
_BATCH_NORMS: dict[str, Callable[..., Any]] = {
    "batch_norm": lambda x, mean, var, m: F.batch_norm(x, mean, var, training=True, momentum=m),
    "native_batch_norm": lambda x, mean, var, m: torch.native_batch_norm(x, None, None, mean, var, True, m, 1e-5),
    "_native_batch_norm_legit": lambda x, mean, var, m: torch.ops.aten._native_batch_norm_legit(
        x, None, None, mean, var, True, m, 1e-5
    ),
    "_batch_norm_with_update": lambda x, mean, var, m: torch.ops.aten._batch_norm_with_update(
        x, torch.ones_like(mean), torch.zeros_like(mean), mean, var, m, 1e-5
    ),
    "instance_norm": lambda x, mean, var, m: F.instance_norm(x, mean, var, momentum=m),
}


@pytest.mark.operator(
    *("nn.functional.batch_norm", "nn.functional.instance_norm", "native_batch_norm", "_native_batch_norm_legit"),
    "_batch_norm_with_update",
)
@pytest.mark.parametrize("name", _BATCH_NORMS)
@pytest.mark.parametrize("momentum", [0.0, 0.1, 1.0])
def test_running_statistics_of_a_norm(
    name: str, momentum: float, device: torch.device, rng: np.random.Generator
) -> None:
    """A norm in training moves the running mean and variance towards those of the batch, by the momentum.

    The variance is that of a sample, with one degree of freedom less (torch, `BatchNorm1d`). Those of an instance norm
    are averaged over the batch.
    """
    array, mean, var = rng.normal(2, 3, (5, 4, 7)), rng.normal(size=4), rng.uniform(0.5, 2, 4)
    axes = (2,) if name == "instance_norm" else (0, 2)
    batch_mean, batch_var = array.mean(axes), array.var(axes, ddof=1)
    if name == "instance_norm":
        batch_mean, batch_var = batch_mean.mean(0), batch_var.mean(0)
    for x in layouts(array, torch.float32, device):
        kept = [given(each, torch.float32, device) for each in (mean, var)]
        _BATCH_NORMS[name](x, *kept, momentum)
        same(kept[0], (1 - momentum) * mean + momentum * batch_mean, "running mean", Bound(256, 64))
        same(kept[1], (1 - momentum) * var + momentum * batch_var, "running variance", Bound(256, 64))
        assert torch.equal(x, layouts(array, torch.float32, device)[0]), "the norm changes its input"


#: Functions that compute in the type that `dtype` names.
_IN_TYPE: dict[str, Callable[..., torch.Tensor]] = {
    "softmax": partial(F.softmax, dim=1),
    "softmin": partial(F.softmin, dim=1),
    "log_softmax": partial(F.log_softmax, dim=1),
    "Tensor.log_softmax": partial(torch.Tensor.log_softmax, dim=1),
    "sum": partial(torch.sum, dim=1),
    "nansum": partial(torch.nansum, dim=1),
    "mean": partial(torch.mean, dim=1),
    "prod": partial(torch.prod, dim=1),
    "cumsum": partial(torch.cumsum, dim=1),
    "cumprod": partial(torch.cumprod, dim=1),
    "vector_norm": partial(torch.linalg.vector_norm, ord=3, dim=1),
    "matrix_norm": torch.linalg.matrix_norm,
    "norm": partial(torch.norm, dim=1),
}


@pytest.mark.parametrize("name", _IN_TYPE)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtype_converts_before_the_computation(
    name: str, dtype: str, device: torch.device, rng: np.random.Generator
) -> None:
    """With `dtype`, an input of 16 bits is converted first, so that the result has the rounding of the wider type.

    Source: the documentation of `dtype` of each function.
    """
    run = _IN_TYPE[name]
    x = given(rng.uniform(0.5, 1.5, (5, 40)), getattr(torch, dtype), device)
    found, wanted = run(x, dtype=torch.float32), run(x.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.operator("nn.functional.cross_entropy")
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cross_entropy_of_ignored_targets_with_each_option(
    reduction: str, smoothing: float, weighted: bool, dtype: str, device: torch.device, rng: np.random.Generator
) -> None:
    """Ignored targets add nothing to the loss or to its weight, also with smoothed labels and weights of classes.

    Smoothing shares its part of a target among all classes (torch, `CrossEntropyLoss`).
    """
    kind = getattr(torch, dtype)
    array, scales = rng.normal(size=(6, 5)), rng.uniform(0.5, 2, 5)
    x, weight = given(array, kind, device), given(scales, kind, device)
    targets = np.array([4, -100, 0, 2, -100, 4])
    logits, weights = exactly(array, kind), exactly(scales, kind) if weighted else np.ones(5)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    kept = targets >= 0
    hard = np.where(kept, -logs[np.arange(6), targets.clip(0)] * weights[targets.clip(0)], 0)
    smooth = np.where(kept, -(logs * weights).sum(1) / 5, 0)
    losses = (1 - smoothing) * hard + smoothing * smooth
    share = weights[targets.clip(0)][kept].sum()
    wanted = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / share}[reduction]
    found = F.cross_entropy(
        x,
        given(targets, torch.int64, device),
        weight if weighted else None,
        reduction=reduction,
        label_smoothing=smoothing,
    )
    same(found, wanted, "loss", Bound(8, 8) if dtype == "bfloat16" else Bound(64, 64))


@pytest.mark.operator("nn.functional.cross_entropy")
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pixels", [(), (3, 2)], ids=["rows", "pixels"])
def test_cross_entropy_of_probabilities_with_each_option(
    reduction: str,
    smoothing: float,
    weighted: bool,
    pixels: tuple[int, ...],
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    """A target of probabilities is smoothed towards equal ones, and its mean is by targets, not by their weight.

    Source: the formula for probabilities in torch, `CrossEntropyLoss`.
    """
    array, scales = rng.normal(size=(6, 5, *pixels)), rng.uniform(0.5, 2, 5)
    shares = np.exp(rng.normal(size=(6, 5, *pixels)))
    shares /= shares.sum(1, keepdims=True)
    weights = (scales if weighted else np.ones(5)).reshape(1, 5, *[1] * len(pixels))
    logs = array - np.log(np.exp(array).sum(1, keepdims=True))
    losses = -(((1 - smoothing) * shares + smoothing / 5) * logs * weights).sum(1)
    found = F.cross_entropy(
        given(array, torch.float32, device),
        given(shares, torch.float32, device),
        given(scales, torch.float32, device) if weighted else None,
        reduction=reduction,
        label_smoothing=smoothing,
    )
    same(found, {"none": losses, "sum": losses.sum(), "mean": losses.mean()}[reduction], "loss", Bound(64, 64))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.operator("nn.functional.conv1d", "nn.functional.pad")
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("kernel", [2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2])
def test_convolution_with_the_same_size_in_each_padding_mode(
    mode: str, kernel: int, dilation: int, device: torch.device, rng: np.random.Generator
) -> None:
    """`padding="same"` pads an even kernel by one more at the end, in each `padding_mode` (torch, `Conv1d`)."""
    array, weights = rng.normal(size=(2, 1, 9)), rng.normal(size=(1, 1, kernel))
    module = torch.nn.Conv1d(1, 1, kernel, padding="same", padding_mode=mode, dilation=dilation, bias=False)
    module.weight = torch.nn.Parameter(given(weights, torch.float32, device))
    total = dilation * (kernel - 1)
    modes: Any = {"zeros": "constant", "replicate": "edge", "circular": "wrap"}
    padded = np.pad(array, ((0, 0), (0, 0), (total // 2, total - total // 2)), modes.get(mode, mode))
    wanted = sum(
        padded[:, :, place * dilation : place * dilation + 9] * weights[0, 0, place] for place in range(kernel)
    )
    same(module(given(array, torch.float32, device)), np.asarray(wanted), "convolution", Bound(64, 64))
