"""Single values that definitions and documentation determine, and that samples of the catalogue lack."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from . import known
from .comparison import Bound, WrongValueError
from .single import CPU_OR_CUDA, CPU_OR_GPU, given, same

pytestmark = CPU_OR_CUDA


@pytest.mark.operator("gcd")
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_gcd_of_the_least_integer_is_positive(dtype: str, device: torch.device, request: pytest.FixtureRequest) -> None:
    """The greatest common divisor with the least integer of a type is that of its magnitude, as NumPy's is.

    The magnitude itself does not fit the type: its divisor with zero is the least integer again.
    """
    known.waive(request, f"begins with a magnitude that does not fit ({known.ISSUE}187338)", device, everywhere=True)
    kind, least = getattr(torch, dtype), np.iinfo(dtype).min
    others = np.array([6, -6, 7, -7, 12, least // 4 * 3, least // 2, least, 0], dtype)
    # By Python's integers, since NumPy's division had the same error on some processors.
    wanted = np.array([math.gcd(int(least), int(each)) for each in others], np.uint64).astype(dtype)
    whole = np.full_like(others, least)
    same(torch.gcd(given(whole, kind, device), given(others, kind, device)), wanted, "gcd of the least integer")
    same(torch.gcd(given(others, kind, device), given(whole, kind, device)), wanted, "gcd with the least integer")


@pytest.mark.operator("add", "sub", "mul", "lt", "maximum", "where")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int64", "complex64"])
@pytest.mark.types("float64")
def test_number_on_the_host_that_is_a_view_has_its_own_value(dtype: str, device: torch.device) -> None:
    """A host tensor of no dimensions combines with a device tensor, also if it is a view with an offset.

    pytorch#187117 is about another device, which read the number at the beginning of the view's memory.
    """
    kind = getattr(torch, dtype)
    numbers, array = torch.arange(2, 8).to(kind), np.full(5, 3)
    x = given(array, kind, device)
    for place in (0, 1, 4, 5):
        view, value = numbers[place], place + 2
        assert view.storage_offset() == place
        same(x + view, array + value, "add")
        same(view - x, value - array, "sub")
        same(x * view, array * value, "mul")
        if not kind.is_complex:
            same(x < view, array < value, "lt")
            same(torch.maximum(x, view.to(device)), np.maximum(array, value), "maximum")
            same(torch.where(x == 3, view, x), np.full(5, value), "where")


@pytest.mark.operator("histc")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_histc_of_16_bits_rounds_each_count_once(
    dtype: str, device: torch.device, request: pytest.FixtureRequest
) -> None:
    """Counts beyond the whole numbers of the type are rounded once, and are not sums that stop growing."""
    known.waive(request, f"counts in the type of the input ({known.ISSUE}174668)", device)
    kind = getattr(torch, dtype)
    counts = [3001, 70, 9000]
    values = np.repeat([0.5, 1.5, 2.5], counts)
    found = torch.histc(given(values, kind, device), bins=3, min=0, max=3)
    same(found, given(counts, kind, torch.device("cpu")).double().numpy(), "histc")


@pytest.mark.operator("nn.functional.grid_sample", "grid_sampler_2d", "grid_sampler_3d")
@pytest.mark.parametrize("dimensions", [2, 3])
def test_grid_sample_reads_nan_as_minus_one(
    dimensions: int, device: torch.device, rng: np.random.Generator, request: pytest.FixtureRequest
) -> None:
    """A NaN coordinate samples like -1, in each mode and with each padding.

    Source: the note in the documentation of `torch.nn.functional.grid_sample`.
    """
    known.waive(request, f"NaN is read in other ways ({known.ISSUE}24823)", device, everywhere=True)
    x = given(rng.uniform(1, 2, (1, 2, *range(3, 3 + dimensions))), torch.float32, device)
    grid = rng.uniform(-1, 1, (1, *([2] * dimensions), dimensions))
    grid[0, 0, ..., 0] = math.nan
    asked = given(grid, torch.float32, device)
    meant = given(np.nan_to_num(grid, nan=-1.0), torch.float32, device)
    modes = ("bilinear", "nearest", *(("bicubic",) if dimensions == 2 else ()))
    for mode, padding, align in itertools.product(modes, ("zeros", "border", "reflection"), (False, True)):
        named = {"mode": mode, "padding_mode": padding, "align_corners": align}
        found, wanted = (torch.nn.functional.grid_sample(x, each, **named) for each in (asked, meant))
        if not torch.equal(found, wanted):
            raise WrongValueError(f"grid_sample, {mode}, {padding}, align_corners={align}: NaN is not read as -1")


@pytest.mark.operator("igammac", "special.gammaincc")
def test_igammac_of_a_tiny_first_argument(device: torch.device, request: pytest.FixtureRequest) -> None:
    """For a near zero, Q(a, x) is a times the exponential integral E1(x) (DLMF 8.4.15; the series of 6.6.2)."""
    known.waive(request, "log gamma(1 + a) is 0 where a is lost beside 1", device, everywhere=True)
    x = np.array([1e-300, 1e-3, 0.25, 0.5])
    series = sum((-x) ** k / (k * math.factorial(k)) for k in range(1, 25))
    integrals = -np.euler_gamma - np.log(x) - series
    for a in (1e-300, 1e-100, 1e-20):
        found = torch.igammac(given(np.full(4, a), torch.float64, device), given(x, torch.float64, device))
        same(found, a * integrals, f"igammac of {a}", Bound(64))


@pytest.mark.operator("linalg.vander")
@pytest.mark.parametrize("increasing", [False, True])
def test_vander_has_the_powers(increasing: bool, device: torch.device, rng: np.random.Generator) -> None:
    """`torch.vander` has a row per element: its powers, falling or rising, as many as requested; also for integers."""
    x = rng.uniform(0.5, 1.5, 6)
    for columns in (None, 0, 1, 2, 9):
        found = torch.vander(given(x, torch.float64, device), columns, increasing)
        same(found, np.vander(x, columns, increasing), "vander", Bound(32))
        whole = torch.vander(given([3, -2, 0], torch.int64, device), columns, increasing)
        same(whole, np.vander([3, -2, 0], columns, increasing), "vander of integers")


@pytest.mark.operator("linalg.vander")
@pytest.mark.leaks("the graph of torch.vander holds itself and its input", link=f"{known.ISSUE}60197")
@pytest.mark.parametrize("increasing", [False, True])
def test_gradient_of_vander(
    increasing: bool, device: torch.device, rng: np.random.Generator, request: pytest.FixtureRequest
) -> None:
    """The gradient of `torch.vander` adds up the derivatives of the powers."""
    known.waive(request, f"autograd refuses its in-place product ({known.ISSUE}60197)", device, everywhere=True)
    values, grad = rng.uniform(0.5, 1.5, 5), rng.normal(size=(5, 4))
    x = given(values, torch.float64, device).requires_grad_()
    try:
        torch.vander(x, 4, increasing).backward(given(grad, torch.float64, device))
    except RuntimeError as error:
        raise WrongValueError(str(error)) from error
    powers = np.arange(4) if increasing else np.arange(4)[::-1]
    wanted = (grad * powers * values[:, None] ** (powers - 1.0)).sum(1)
    assert x.grad is not None
    same(x.grad, wanted, "the gradient of vander", Bound(64, 64))


@CPU_OR_GPU
@pytest.mark.operator("ldexp")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ldexp_of_exponents_beyond_32_bits(dtype: str, device: torch.device, request: pytest.FixtureRequest) -> None:
    """`x * 2**n` is infinite or zero, with the sign of x, if n is far beyond the exponents of the type.

    Source: the formula in the documentation of `torch.ldexp`.
    """
    known.waive(request, "an exponent of 64 bits is cut to 32", device, everywhere=True)
    x = np.array([1.0, -1.0] * 4)
    exponents = np.repeat([2**32, 2**32 + 1, -(2**32), 2**62], 2)
    found = torch.ldexp(given(x, getattr(torch, dtype), device), given(exponents, torch.int64, device))
    wanted = np.where(exponents > 0, np.inf, 0.0) * x
    same(found, wanted, "ldexp")
    if not torch.equal(found.signbit().cpu(), torch.from_numpy(np.signbit(x))):
        raise WrongValueError("ldexp loses the sign of zero")


@CPU_OR_GPU
@pytest.mark.operator("kaiser_window", "signal.windows.kaiser")
@pytest.mark.parametrize("beta", [20.0, 100.0, 300.0])
def test_kaiser_window_of_a_large_beta(beta: float, device: torch.device, request: pytest.FixtureRequest) -> None:
    """The window is a quotient of Bessel functions that float64 holds, although float32 holds neither.

    Source: the formula in the documentation of `torch.kaiser_window`; NumPy's `kaiser` computes it in float64.
    """
    if beta > 80:
        known.waive(request, "I0(beta) overflows in float32, and the quotient is NaN", device, everywhere=True)
    found = torch.kaiser_window(9, periodic=False, beta=beta, dtype=torch.float32, device=device)
    same(found, np.kaiser(9, beta), "kaiser_window", Bound(8 * beta, least=1e-37))


@pytest.mark.operator("nn.functional.group_norm", "native_group_norm")
@pytest.mark.parametrize("given_weight", [True, False], ids=["weight", "no weight"])
def test_gradient_of_a_bias_of_group_norm(
    given_weight: bool, device: torch.device, rng: np.random.Generator, request: pytest.FixtureRequest
) -> None:
    """The gradient of the bias is the sum of the incoming gradient, per channel, also without a weight."""
    if not given_weight:
        known.waive(request, "asks the weight that is not there for its device", device, everywhere=True)
    x, grad = given(rng.normal(size=(3, 4, 5)), torch.float64, device), rng.normal(size=(3, 4, 5))
    weight = given(rng.uniform(0.5, 1, 4), torch.float64, device) if given_weight else None
    bias = given(rng.normal(size=4), torch.float64, device).requires_grad_()
    found = torch.nn.functional.group_norm(x, 2, weight, bias)
    try:
        found.backward(given(grad, torch.float64, device))
    except RuntimeError as error:
        raise WrongValueError(str(error)) from error
    assert bias.grad is not None
    same(bias.grad, grad.sum((0, 2)), "the gradient of the bias", Bound(32, 32))


@pytest.mark.operator("logcumsumexp")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.types("float64")
def test_logcumsumexp_begins_with_minus_infinity(dtype: str, device: torch.device) -> None:
    """The logarithm of a sum of zeros is minus infinity, and later elements have their own sums (NumPy's log)."""
    low = -np.inf
    x = np.array([[low, low, 0.0, low, 0.0], [0.0, low, low, 0.0, low]])
    with np.errstate(divide="ignore"):
        wanted = [np.log(np.cumsum(np.exp(x), dim)) for dim in (0, 1)]
    kind = getattr(torch, dtype)
    for dim, right in enumerate(wanted):
        found = torch.logcumsumexp(given(x, kind, device), dim).double().cpu().numpy()
        np.testing.assert_allclose(found, right, rtol=1e-2 if kind.itemsize == 2 else 1e-6)


@pytest.mark.operator("nn.functional.binary_cross_entropy", "binary_cross_entropy")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.types("float64")
def test_binary_cross_entropy_of_certainty_is_at_most_100(dtype: str, device: torch.device) -> None:
    """A logarithm of zero counts as -100, so that loss and gradient are finite.

    Source: the documentation of `torch.nn.BCELoss`.
    """
    kind = getattr(torch, dtype)
    p, target = np.array([0.0, 1.0, 0.0, 1.0, 0.0]), np.array([1.0, 0.0, 0.0, 1.0, 0.25])
    weight, wanted = np.array([1.0, 0.5, 2.0, 2.0, 1.0]), np.array([100.0, 50.0, 0.0, 0.0, 25.0])
    x = given(p, kind, device).requires_grad_()
    y, w = given(target, kind, device), given(weight, kind, device)
    for reduction, right in (("none", wanted), ("sum", wanted.sum()), ("mean", wanted.mean())):
        loss = torch.nn.functional.binary_cross_entropy(x, y, w, reduction=reduction)
        same(loss.detach(), right, f"binary_cross_entropy, {reduction}", Bound(1))
        (slope,) = torch.autograd.grad(loss.sum(), x)
        assert bool(slope.isfinite().all())
        assert slope.sign().tolist() == [-1, 1, 0, 0, -1]


@pytest.mark.operator("roll")
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64"])
def test_roll_wraps_around_any_number_of_times(dtype: str, device: torch.device) -> None:
    """Shifts beyond the size, of either sign, wrap, also of several dimensions and of a dimension named twice (NumPy).

    Without dimensions, the flattened tensor is rolled.
    """
    kind = getattr(torch, dtype)
    array = np.arange(60).reshape(3, 4, 5) % (2 if kind == torch.bool else 60)
    for layout in ((0, 1, 2), (2, 0, 1)):
        x, values = given(array, kind, device).permute(layout), array.transpose(layout)
        for shifts, dims in (
            ((4, -7), (0, 1)),
            ((11, 5, -9), (-1, 0, 1)),
            ((2, 3), (1, 1)),
            ((-13,), (2,)),
            (61, None),
        ):
            wanted = np.roll(values, shifts, dims)
            same(torch.roll(x, shifts, dims), wanted, f"roll by {shifts} along {dims}")


@pytest.mark.operator("index_add")
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "float32", "bfloat16", "complex64"])
def test_index_add_scales_what_it_adds(dtype: str, device: torch.device) -> None:
    """`index_add` adds alpha times each slice, along any dimension, also to elements that are named several times."""
    kind = getattr(torch, dtype)
    array, source, index = np.arange(24).reshape(4, 6), np.arange(20).reshape(4, 5) % 7, np.array([2, 0, 2, 5, 0])
    wanted = array.copy()
    np.add.at(wanted, (slice(None), index), 3 * source)
    x, y, places = given(array, kind, device), given(source, kind, device), given(index, torch.int32, device)
    for dim, axes in ((1, (0, 1)), (-1, (0, 1)), (0, (1, 0)), (-2, (1, 0))):
        a, b, right = x.permute(axes), y.permute(axes), wanted.transpose(axes)
        for at in (places, places.long()):
            same(torch.index_add(a, dim, at, b, alpha=3), right, f"index_add along {dim}")
        same(a.clone().index_add_(dim, places, b, alpha=3), right, f"index_add_ along {dim}")
        out = torch.empty_like(a.contiguous())
        torch.index_add(a, dim, places, b, alpha=3, out=out)
        same(out, right, f"index_add along {dim} into a tensor")
