"""Autocast's conversions: dtypes that it ignores, and its cache of converted weights.

A dispatch mode below autocast counts the conversions.
"""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from ._torch_private import counting_casts
from .lower import BF16, LOWER

pytestmark = pytest.mark.requires(autocast=True)

UNTOUCHED = pytest.mark.parametrize("ignored", [torch.float64, torch.int32], ids=["float64", "int32"])


# ---- dtypes that are not converted ----


@pytest.mark.covers("test_cuda::TestCuda::test_autocast_ignored_types")
@LOWER
@UNTOUCHED
def test_autocast_does_not_convert_float64_and_integers(
    device: torch.device, dtype: torch.dtype, ignored: torch.dtype
) -> None:
    """Autocast does not convert float64 and integer tensors, for operations of lower precision or of float32.

    The results equal those without autocast. Neither the lower dtype nor float32 can represent the values.
    """
    x = torch.tensor([[(1 << 24) + 1, 3], [5, 7]], dtype=ignored, device=device)
    if ignored == torch.float64:
        x = torch.tensor([[1 / 3, 2 / 7], [5 / 11, 13 / 17]], dtype=ignored, device=device)
    # CUDA has no integer matrix product.
    calls = {"pow": lambda: x.pow(2.0), "sum": lambda: x.sum(), "cumsum": lambda: x.cumsum(0), "prod": lambda: x.prod()}
    if ignored == torch.float64:
        calls |= {"mm": lambda: x.mm(x), "norm": lambda: x.norm(), "softmax": lambda: x.softmax(0)}

    with torch.autocast(device.type, dtype=dtype):
        inside = {name: function() for name, function in calls.items()}

    for name, function in calls.items():
        outside = function()
        assert inside[name].dtype == outside.dtype, name
        assert torch.equal(inside[name], outside), name


@pytest.mark.covers("test_cuda::TestCuda::test_autocast_ignored_types")
@pytest.mark.requires(not_={"device": "soft"})  # reports arguments of mismatched dtypes late, as a device failure
@LOWER
def test_autocast_product_of_float64_and_lower_type_is_an_error(device: torch.device, dtype: torch.dtype) -> None:
    """A product of a float64 matrix and one of the autocast dtype raises, as it does without autocast."""
    double = torch.ones(2, 2, dtype=torch.float64, device=device)
    half = torch.ones(2, 2, dtype=dtype, device=device)

    with torch.autocast(device.type, dtype=dtype), pytest.raises(RuntimeError):
        torch.mm(double, half)


@LOWER
def test_autocast_does_not_convert_out_and_in_place_results(device: torch.device, dtype: torch.dtype) -> None:
    """`out=` and in-place variants are not autocast (torch.amp, autocast op reference): results are as without it."""
    a, b = (torch.randn(4, 4, device=device) for _ in range(2))
    into, here = torch.empty(4, 4, device=device), a.clone()

    with torch.autocast(device.type, dtype=dtype):
        torch.mm(a, b, out=into)
        here.addmm_(a, b)

    assert into.dtype == here.dtype == torch.float32
    assert torch.equal(into, a.mm(b))
    assert torch.equal(here, torch.addmm(a, a, b))


@LOWER
@pytest.mark.types("float64")
def test_autocast_keeps_an_explicit_dtype(device: torch.device, dtype: torch.dtype) -> None:
    """Autocast does not override an explicitly requested result dtype."""
    x = torch.ones(4, device=device, dtype=dtype)

    with torch.autocast(device.type, dtype=dtype):
        found = [x.sum(dtype=torch.float64), x.softmax(0, dtype=torch.float32), x.cumsum(0, dtype=dtype)]

    assert [result.dtype for result in found] == [torch.float64, torch.float32, dtype]


# ---- weights that are converted once ----


def casts(device: torch.device, dtype: torch.dtype, layer: nn.Module, rounds: int = 3, **options: bool) -> int:
    """Return the number of conversions to `dtype` when a layer is called several times in a new region."""
    x = torch.ones(2, 4, device=device)
    tally: list[torch.dtype] = []
    with counting_casts(tally), torch.autocast(device.type, dtype=dtype, **options):
        for _ in range(rounds):
            layer(x)
    return tally.count(dtype)


@LOWER
def test_autocast_cache_converts_a_weight_once_a_region(device: torch.device, dtype: torch.dtype) -> None:
    """In a region, a parameter is converted once and data each time; the next region converts the parameter again."""
    layer = nn.Linear(4, 4, device=device)

    assert casts(device, dtype, layer, rounds=1) == 3
    assert casts(device, dtype, layer, rounds=3) == 2 + 3
    assert casts(device, dtype, layer, rounds=3) == 2 + 3


@LOWER
def test_autocast_cache_enabled_false_converts_a_weight_each_time(device: torch.device, dtype: torch.dtype) -> None:
    """With `cache_enabled=False`, parameters are converted at each use."""
    layer = nn.Linear(4, 4, device=device)

    assert casts(device, dtype, layer, cache_enabled=False) == 3 * 3
    assert torch.is_autocast_cache_enabled()


@LOWER
@pytest.mark.parametrize("outer", [False, True], ids=["outer_without", "outer_with"])
def test_autocast_cache_enabled_is_that_of_the_outer_region_again(
    device: torch.device, dtype: torch.dtype, outer: bool
) -> None:
    """Each region decides whether weights are converted once, also a region with `enabled=False`.

    After an inner region, the outer one's setting applies again.
    """
    layer, x = nn.Linear(4, 4, device=device), torch.ones(2, 4, device=device)
    tally: list[torch.dtype] = []
    seen = []
    with counting_casts(tally), torch.autocast(device.type, dtype=dtype, cache_enabled=outer):
        with torch.autocast(device.type, dtype=dtype, cache_enabled=not outer):
            seen.append(torch.is_autocast_cache_enabled())
        with torch.autocast(device.type, enabled=False, cache_enabled=not outer):
            seen.append(torch.is_autocast_cache_enabled())
        seen.append(torch.is_autocast_cache_enabled())
        for _ in range(3):
            layer(x)

    assert seen == [not outer, not outer, outer]
    assert tally.count(dtype) == (2 + 3 if outer else 3 * 3)
    assert torch.is_autocast_cache_enabled()


@LOWER
def test_autocast_cache_keeps_only_leaves_that_require_grad(device: torch.device, dtype: torch.dtype) -> None:
    """Only leaves that require grad are cached, so a frozen layer's weights are converted each time."""
    layer = nn.Linear(4, 4, device=device).requires_grad_(requires_grad=False)

    assert casts(device, dtype, layer) == 3 * 3


@LOWER
def test_clear_autocast_cache_drops_converted_weights(device: torch.device, dtype: torch.dtype) -> None:
    """A cached weight hides an in-place change in the same region until `clear_autocast_cache`.

    The next region always sees the change.
    """
    weight = torch.ones(2, 2, device=device, requires_grad=True)
    x = torch.ones(1, 2, device=device)

    with torch.autocast(device.type, dtype=dtype):
        first = x @ weight
        with torch.no_grad():
            weight.fill_(3)
        hidden = x @ weight
        torch.clear_autocast_cache()
        cleared = x @ weight
        with torch.no_grad():
            weight.fill_(5)
    with torch.autocast(device.type, dtype=dtype):
        later = x @ weight

    assert [result[0, 0].item() for result in (first, hidden, cleared, later)] == [2, 2, 6, 10]


@LOWER
def test_autocast_cache_of_an_outer_region_serves_the_inner_one(device: torch.device, dtype: torch.dtype) -> None:
    """The cache is cleared when the outermost region ends: an inner region of the same dtype shares it."""
    layer = nn.Linear(4, 4, device=device)
    x = torch.ones(2, 4, device=device)
    tally: list[torch.dtype] = []

    with counting_casts(tally), torch.autocast(device.type, dtype=dtype):
        layer(x)
        with torch.autocast(device.type, dtype=dtype):
            layer(x)
        layer(x)

    assert tally.count(dtype) == 2 + 3


@LOWER
def test_autocast_cache_filled_under_no_grad_keeps_gradients(device: torch.device, dtype: torch.dtype) -> None:
    """A weight first used under `no_grad` and then with grad mode on, in one region, gets its full gradient."""
    layer = nn.Linear(4, 4, device=device)
    x = torch.randn(2, 4, device=device)

    gradients = []
    for before in (False, True):
        layer.zero_grad()
        with torch.autocast(device.type, dtype=dtype):
            if before:
                with torch.no_grad():
                    layer(x)
            loss = layer(x).float().square().sum()
        loss.backward()
        assert layer.weight.grad is not None
        gradients.append(layer.weight.grad.clone())

    assert gradients[0].count_nonzero() > 0
    assert torch.equal(*gradients)


@LOWER
def test_autocast_cache_under_no_grad_keeps_a_weight_once(device: torch.device, dtype: torch.dtype) -> None:
    """Under `no_grad` too, parameters are converted once per region."""
    with torch.no_grad():
        assert casts(device, dtype, nn.Linear(4, 4, device=device)) == 2 + 3


@pytest.mark.covers("test_cuda::TestCuda::test_autocast_cache_leak")
@pytest.mark.requires(accelerator=True)
@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, id="bf16", marks=BF16), pytest.param(torch.float16, id="fp16")]
)
@pytest.mark.requires(caching_allocator=True)
def test_autocast_cache_under_no_grad_does_not_leak(device: torch.device, dtype: torch.dtype) -> None:
    """Repeated calls of a layer under `no_grad` in one region allocate no further memory after the first.

    The first call allocates some, as a control, and all of it is freed at the end of the region.
    """
    layer = nn.Linear(64, 64, device=device)
    x = torch.randn(1, 64, device=device)
    layer(x)
    gc.collect()

    def allocated() -> int:
        torch.accelerator.synchronize(device)
        return torch.accelerator.memory_allocated(device)

    start = allocated()
    with torch.autocast(device.type, dtype=dtype), torch.no_grad():
        out = layer(x)
        first = allocated()
        for _ in range(5):
            out = layer(x)
        last = allocated()
    del out

    assert first >= start + 64 * 64 * 2
    assert last == first
    assert allocated() == start
