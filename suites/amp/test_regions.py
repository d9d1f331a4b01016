"""The extent of autocast regions: nesting, disabling, functions, threads, the backward pass.

The cases check torch's state and the dtype of a matrix product.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from .lower import BF16, LOWER, other

pytestmark = pytest.mark.requires(autocast=True)

#: The seconds after which a thread that others wait for counts as lost.
LOST = 60.0


def product(device: torch.device) -> torch.dtype:
    """Return the dtype in which a product of float32 matrices currently runs."""
    a = torch.ones(4, 4, device=device)
    return (a @ a).dtype


@pytest.fixture(autouse=True)
def outside(device: torch.device) -> None:
    """Check that autocast is off at the start of the case."""
    assert not torch.is_autocast_enabled(device.type)


@LOWER
def test_is_autocast_enabled_and_dtype_of_nested_regions(device: torch.device, dtype: torch.dtype) -> None:
    """In a region, torch reports autocast as enabled, with the region's dtype.

    A nested region has its own state and dtype, and those of the outer region are restored afterwards.
    """
    before = torch.get_autocast_dtype(device.type)
    seen: list[tuple[bool, torch.dtype, torch.dtype]] = []

    def look() -> None:
        seen.append((torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type), product(device)))

    with torch.autocast(device.type, dtype=dtype):
        look()
        with torch.autocast(device.type, enabled=False):
            look()
            with torch.autocast(device.type, dtype=dtype):
                look()
            look()
        look()
    look()

    on, off = (True, dtype, dtype), (False, dtype, torch.float32)
    assert seen == [on, off, on, off, on, (False, before, torch.float32)]


@BF16
def test_autocast_region_inside_may_have_another_dtype(device: torch.device) -> None:
    """A nested region of another lower-precision dtype applies until its end."""
    seen: list[torch.dtype] = []
    with torch.autocast(device.type, dtype=torch.float16):
        seen.append(product(device))
        with torch.autocast(device.type, dtype=torch.bfloat16):
            seen.append(product(device))
        seen.append(product(device))

    assert seen == [torch.float16, torch.bfloat16, torch.float16]


@LOWER
def test_autocast_object_can_be_entered_again(device: torch.device, dtype: torch.dtype) -> None:
    """A region object can be entered repeatedly."""
    region = torch.autocast(device.type, dtype=dtype)
    seen: list[torch.dtype] = []
    for _ in range(3):
        with region:
            seen.append(product(device))
        seen.append(product(device))

    assert seen == [dtype, torch.float32] * 3


@LOWER
def test_autocast_region_ends_by_an_exception(device: torch.device, dtype: torch.dtype) -> None:
    """An exception leaves a region and propagates, and the previous state is restored at each depth."""
    with torch.autocast(device.type, dtype=dtype):
        with pytest.raises(KeyError, match="mine"), torch.autocast(device.type, enabled=False):
            raise KeyError("mine")
        assert product(device) == dtype
    assert product(device) == torch.float32


@LOWER
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
def test_autocast_casts_weights_again_after_a_region(device: torch.device, dtype: torch.dtype, fails: bool) -> None:
    """The casts of weights that a region caches end with the outermost region, also if an exception ends it.

    A weight that is changed after the region has its new value in the next region.
    """
    weight, x = torch.ones(4, 4, device=device, requires_grad=True), torch.ones(4, 4, device=device)
    with contextlib.suppress(KeyError), torch.autocast(device.type, dtype=dtype):
        assert (x @ weight).tolist() == [[4.0] * 4] * 4
        if fails:
            raise KeyError("mine")
    with torch.no_grad():
        weight.mul_(3)
    with torch.autocast(device.type, dtype=dtype):
        assert (x @ weight).tolist() == [[12.0] * 4] * 4


@LOWER
def test_autocast_as_a_decorator(device: torch.device, dtype: torch.dtype) -> None:
    """A decorated function runs in the region at each call and keeps its name.

    The caller's state is restored, also after an exception.
    """

    @torch.autocast(device.type, dtype=dtype)
    def here(divisor: int) -> tuple[float, torch.dtype]:
        return 1 / divisor, product(device)

    assert here(2) == (0.5, dtype)
    assert here(divisor=1) == (1.0, dtype)
    assert here.__name__ == "here"
    with pytest.raises(ZeroDivisionError):
        here(0)
    assert product(device) == torch.float32


#: The previous state is stored on the region object, which each call enters. Autograd's modes had the same bug.
ONE_REGION_TWICE = pytest.mark.xfail(
    raises=AssertionError,
    reason="a region that is re-entered loses the state before it, "
    "as torch.enable_grad did: https://github.com/pytorch/pytorch/issues/44531",
)


@ONE_REGION_TWICE
@LOWER
@pytest.mark.parametrize("way", ["decorated", "with"])
def test_autocast_object_that_is_reentered_restores_the_state(
    device: torch.device, dtype: torch.dtype, way: str
) -> None:
    """A region object that is re-entered, by recursion or by hand, restores the original state."""
    before = torch.get_autocast_dtype(device.type)
    region = torch.autocast(device.type, dtype=dtype)

    @region
    def count_down(number: int) -> list[torch.dtype]:
        return [product(device)] + (count_down(number - 1) if number else [])

    try:
        if way == "decorated":
            assert count_down(2) == [dtype] * 3
        else:
            with region, region:
                assert product(device) == dtype
        assert product(device) == torch.float32
    finally:
        torch.set_autocast_enabled(device.type, False)
        torch.set_autocast_dtype(device.type, before)


def test_get_autocast_dtype_is_used_by_a_region_without_a_dtype(device: torch.device) -> None:
    """A region without a dtype uses `get_autocast_dtype` of the device, float16 or bfloat16."""
    own = torch.get_autocast_dtype(device.type)

    with torch.autocast(device.type):
        found = product(device)

    assert found == own
    assert own in (torch.float16, torch.bfloat16)


@pytest.mark.requires(any=[{"accelerator": False}, {"device": "cuda"}])
def test_get_autocast_dtype_is_float16_on_cuda_and_bfloat16_on_cpu(device: torch.device) -> None:
    """The default autocast dtype is float16 on CUDA and bfloat16 on the CPU (torch.amp)."""
    assert torch.get_autocast_dtype("cuda") == torch.float16
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert torch.get_autocast_dtype(device.type) == {"cuda": torch.float16, "cpu": torch.bfloat16}[device.type]


@pytest.mark.requires(accelerator=True)
def test_autocast_regions_are_of_one_device_type(device: torch.device) -> None:
    """Regions apply to one device type; a region for an accelerator and one for the CPU can be active together."""
    host = torch.device("cpu")

    with torch.autocast(device.type, dtype=torch.float16):
        only_there = (product(device), product(host))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            both = (product(device), product(host))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        only_here = (product(device), product(host))

    assert only_there == (torch.float16, torch.float32)
    assert both == (torch.float16, torch.bfloat16)
    assert only_here == (torch.float32, torch.bfloat16)


@pytest.mark.requires(not_={"device": "cuda"})
def test_autocast_off_cuda_warns_about_an_unsupported_dtype(device: torch.device) -> None:
    """Except on CUDA, a region with an unsupported dtype has no effect, and warns with the name of the device."""
    with pytest.warns(UserWarning, match=rf"(?i)In {device.type} autocast, but the target dtype is not supported"):
        region = torch.autocast(device.type, dtype=torch.float64)

    with region:
        assert product(device) == torch.float32


def test_autocast_refuses_an_unknown_device_type() -> None:
    """A device type that is not a string raises ValueError, and one without autocast raises RuntimeError."""
    with pytest.raises(ValueError, match="str"):
        torch.autocast(torch.device("cpu"))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="meta"):
        torch.autocast("meta", dtype=torch.float16)
    assert torch.amp.is_autocast_available("cpu")
    assert not torch.amp.is_autocast_available("meta")


@LOWER
def test_autocast_gradients_do_not_depend_on_where_backward_is_called(device: torch.device, dtype: torch.dtype) -> None:
    """Backward operations run in the dtypes of their forward operations.

    Gradients are therefore the same whether `backward` is called within or after the region.
    """

    def gradient(*, inside: bool) -> torch.Tensor:
        torch.manual_seed(7)
        weight = torch.randn(8, 8, device=device, requires_grad=True)
        x = torch.randn(4, 8, device=device)
        with torch.autocast(device.type, dtype=dtype):
            loss = (x @ weight).float().square().sum()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        assert weight.grad is not None
        return weight.grad

    outside = gradient(inside=False)

    assert outside.dtype == torch.float32
    assert torch.equal(outside, gradient(inside=True))
    assert not torch.equal(outside, outside.to(dtype).float() * 0)


# ---- threads ----


@LOWER
def test_autocast_is_off_in_a_new_thread(device: torch.device, dtype: torch.dtype) -> None:
    """Autocast is per thread.

    A new thread starts outside of its parent's region, and its own region does not affect the parent.
    """

    def elsewhere() -> tuple[torch.dtype, torch.dtype]:
        first = product(device)
        with torch.autocast(device.type, dtype=other(dtype)):
            torch.set_autocast_cache_enabled(False)
            try:
                return first, torch.get_autocast_dtype(device.type)
            finally:
                torch.set_autocast_cache_enabled(True)

    with torch.autocast(device.type, dtype=dtype), ThreadPoolExecutor(1) as pool:
        seen = pool.submit(elsewhere).result(LOST)
        assert torch.is_autocast_cache_enabled()
        assert product(device) == dtype

    assert seen == (torch.float32, other(dtype))


@LOWER
def test_autocast_regions_are_per_thread(device: torch.device, dtype: torch.dtype) -> None:
    """Concurrent threads in different regions, ordered by a barrier, each see only their own region."""
    meet = threading.Barrier(3, timeout=LOST)

    def in_turns(region: torch.autocast | None) -> list[torch.dtype]:
        seen: list[torch.dtype] = []
        for _ in range(5):
            meet.wait()
            if region is None:
                seen.append(product(device))
                meet.wait()
            else:
                with region:
                    meet.wait()
                    seen.append(product(device))
        return seen

    regions = [torch.autocast(device.type, dtype=dtype), torch.autocast(device.type, enabled=False), None]
    with ThreadPoolExecutor(3) as pool:
        found = [future.result(LOST) for future in [pool.submit(in_turns, region) for region in regions]]

    assert found == [[dtype] * 5, [torch.float32] * 5, [torch.float32] * 5]
