"""Where autocast holds: regions in regions, switched off and on again, functions, threads, the backward pass.

The state is asked of torch, and seen in the type of a matrix product.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from .lower import BF16, LOWER, other

#: Seconds until a thread that the others wait for counts as lost.
LOST = 60.0


def product(device: torch.device) -> torch.dtype:
    """The type in which a product of float32 matrices runs here and now."""
    a = torch.ones(4, 4, device=device)
    return (a @ a).dtype


@pytest.fixture(autouse=True)
def outside(device: torch.device) -> None:
    """Cases begin where autocast is off."""
    assert not torch.is_autocast_enabled(device.type)


@LOWER
def test_is_autocast_enabled_and_dtype_are_the_innermost_regions(device: torch.device, dtype: torch.dtype) -> None:
    """Contract: in a region, torch says that autocast is on and with which type; a region inside has its own type, on
    or off, and after it the outer one's holds again."""
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
    """Contract: inside a region of one type of lower precision one of the other type holds, and ends."""
    seen: list[torch.dtype] = []
    with torch.autocast(device.type, dtype=torch.float16):
        seen.append(product(device))
        with torch.autocast(device.type, dtype=torch.bfloat16):
            seen.append(product(device))
        seen.append(product(device))

    assert seen == [torch.float16, torch.bfloat16, torch.float16]


@LOWER
def test_autocast_object_can_be_entered_again(device: torch.device, dtype: torch.dtype) -> None:
    """Contract: one region object can be entered one time after another."""
    region = torch.autocast(device.type, dtype=dtype)
    seen: list[torch.dtype] = []
    for _ in range(3):
        with region:
            seen.append(product(device))
        seen.append(product(device))

    assert seen == [dtype, torch.float32] * 3


@LOWER
def test_autocast_region_ends_by_an_exception(device: torch.device, dtype: torch.dtype) -> None:
    """Contract: a region that is left by an exception lets it through and restores what was before, at each depth."""
    with torch.autocast(device.type, dtype=dtype):
        with pytest.raises(KeyError, match="mine"), torch.autocast(device.type, enabled=False):
            raise KeyError("mine")
        assert product(device) == dtype
    assert product(device) == torch.float32


@LOWER
def test_autocast_as_a_decorator(device: torch.device, dtype: torch.dtype) -> None:
    """Contract: a function decorated with a region runs in it, at each call, keeps its name, and leaves its caller's
    state alone, also when it raises."""

    @torch.autocast(device.type, dtype=dtype)
    def here(divisor: int) -> tuple[float, torch.dtype]:
        return 1 / divisor, product(device)

    assert here(2) == (0.5, dtype)
    assert here(divisor=1) == (1.0, dtype)
    assert here.__name__ == "here"
    with pytest.raises(ZeroDivisionError):
        here(0)
    assert product(device) == torch.float32


#: What was before is kept on the region object, which each call enters. Modes of autograd had the same flaw.
ONE_REGION_TWICE = pytest.mark.xfail(
    raises=AssertionError,
    reason="a region entered while it holds forgets what was before it, "
    "as torch.enable_grad did: https://github.com/pytorch/pytorch/issues/44531",
)


@ONE_REGION_TWICE
@LOWER
@pytest.mark.parametrize("way", ["decorated", "with"])
def test_autocast_object_entered_while_it_holds_restores_the_state(
    device: torch.device, dtype: torch.dtype, way: str
) -> None:
    """Contract: a region object that is entered again while it holds, by a decorated function that calls itself or by
    hand, restores what was before when the outermost is left."""
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
    """Contract: a region without a type has the one that torch gives as the device's, float16 or bfloat16."""
    own = torch.get_autocast_dtype(device.type)

    with torch.autocast(device.type):
        found = product(device)

    assert found == own
    assert own in (torch.float16, torch.bfloat16)


@pytest.mark.requires(not_={"device": "soft"})
def test_get_autocast_dtype_is_float16_on_cuda_and_bfloat16_on_cpu(device: torch.device) -> None:
    """Contract: without more said, autocast goes to float16 on CUDA and to bfloat16 on the CPU (torch.amp)."""
    assert torch.get_autocast_dtype("cuda") == torch.float16
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert torch.get_autocast_dtype(device.type) == {"cuda": torch.float16, "cpu": torch.bfloat16}[device.type]


@pytest.mark.requires(accelerator=True)
def test_autocast_regions_are_of_one_device_type(device: torch.device) -> None:
    """Contract: a region for an accelerator is none for the CPU, nor the other way round; both can hold together."""
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
def test_autocast_off_cuda_warns_of_a_dtype_it_does_not_go_to(device: torch.device) -> None:
    """Contract: off CUDA, a region for a type that is not of lower precision warns, and is no region."""
    with pytest.warns(UserWarning, match="not supported"):
        region = torch.autocast(device.type, dtype=torch.float64)

    with region:
        assert product(device) == torch.float32


def test_autocast_refuses_an_unknown_device_type() -> None:
    """Contract: what is no name is a ValueError, and a device that has no autocast a RuntimeError."""
    with pytest.raises(ValueError, match="str"):
        torch.autocast(torch.device("cpu"))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="meta"):
        torch.autocast("meta", dtype=torch.float16)
    assert torch.amp.is_autocast_available("cpu")
    assert not torch.amp.is_autocast_available("meta")


@LOWER
def test_autocast_gradients_do_not_depend_on_where_backward_is_called(device: torch.device, dtype: torch.dtype) -> None:
    """Contract: operations of the backward pass run in the types that their forward operations ran in. So gradients
    are the same whether `backward` is called after the region or in it."""

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
    """Contract: autocast is a thread's own. One that is started in a region is not in it, and one of its own ends
    with it, without an effect on the thread that started it."""

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
def test_autocast_regions_of_threads_are_their_own(device: torch.device, dtype: torch.dtype) -> None:
    """Contract: while one thread is in a region, others beside it are in one of float32 or in none; each sees its own
    only, in the middle of the others' and in turns that a barrier makes."""
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
