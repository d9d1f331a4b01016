"""The memory fraction of a process: the ways to set it, and its enforcement."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .answers import ask
from .limits import MIB, block, settle

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.timeout(300)]

#: An arbitrary fraction of a device.
FRACTION = 0.5


@pytest.fixture
def whole(device: torch.device) -> Iterator[int]:
    """Yield the device's memory in bytes, and restore the device's fraction afterwards."""
    before = torch.cuda.get_per_process_memory_fraction(device)
    settle(device)
    yield torch.cuda.get_device_properties(device).total_memory
    settle(device)
    torch.cuda.set_per_process_memory_fraction(before, device)


def limit(device: torch.device, whole: int, more: int) -> None:
    """Allow torch `more` bytes above what it has reserved."""
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(device) + more) / whole, device)


@pytest.mark.usefixtures("whole")
@pytest.mark.covers("test_cuda::TestCuda::test_get_per_process_memory_fraction")
@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 1.0])
def test_get_per_process_memory_fraction_is_what_was_set(device: torch.device, fraction: float) -> None:
    """`get_per_process_memory_fraction` returns the value set, for a device, an index, or the current device."""
    torch.cuda.set_per_process_memory_fraction(fraction, device)

    assert torch.cuda.get_per_process_memory_fraction(device) == pytest.approx(fraction, rel=1e-9)
    assert torch.cuda.get_per_process_memory_fraction(device.index) == pytest.approx(fraction, rel=1e-9)
    assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(fraction, rel=1e-9)


@pytest.mark.covers("test_cuda::TestCuda::test_get_per_process_memory_fraction")
@pytest.mark.own_process
def test_get_per_process_memory_fraction_is_1_at_first(device: torch.device) -> None:
    """The default fraction is 1."""
    assert ask("tell(torch.cuda.get_per_process_memory_fraction(0))", device) == 1.0


@pytest.mark.covers("test_cuda::TestCuda::test_set_per_process_memory_fraction")
def test_set_per_process_memory_fraction_refuses_more_than_the_fraction(device: torch.device, whole: int) -> None:
    """Requests up to the fraction succeed; one beyond it raises OutOfMemoryError although the device has room.

    Freed memory can be reused, and a larger fraction lets the failed request succeed.
    """
    limit(device, whole, 100 * MIB)

    first = block(device, 60 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        block(device, 60 * MIB)
    del first
    assert block(device, 90 * MIB).nbytes == 90 * MIB

    settle(device)
    limit(device, whole, 200 * MIB)
    both = [block(device, 60 * MIB) for _ in range(2)]
    assert len(both) == 2


@pytest.mark.covers("test_cuda::TestCuda::test_set_per_process_memory_fraction")
def test_set_per_process_memory_fraction_counts_cached_memory(device: torch.device, whole: int) -> None:
    """Cached memory counts towards the fraction.

    Reserved bytes never exceed it, and cached blocks are released to make room.
    """
    limit(device, whole, 100 * MIB)
    allowed = torch.cuda.memory_reserved(device) + 100 * MIB
    for size in (30, 50, 70, 90):
        block(device, size * MIB)
        assert torch.cuda.memory_reserved(device) <= allowed


@pytest.mark.covers("test_cuda::TestCuda::test_set_per_process_memory_fraction")
@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize(
    ("fraction", "error"),
    [(1.5, ValueError), (-0.1, ValueError), ("half", TypeError), (1, TypeError)],
    ids=str,
)
def test_set_per_process_memory_fraction_refuses_values_outside_0_to_1(
    device: torch.device, fraction: float, error: type
) -> None:
    """A fraction outside 0 to 1 raises ValueError, another type raises TypeError, and the fraction does not change."""
    torch.cuda.set_per_process_memory_fraction(FRACTION, device)

    with pytest.raises(error):
        torch.cuda.set_per_process_memory_fraction(fraction, device)

    assert torch.cuda.get_per_process_memory_fraction(device) == pytest.approx(FRACTION)


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_memory_fraction_setting")
def test_per_process_memory_fraction_as_a_setting_in_the_environment(device: torch.device) -> None:
    """`per_process_memory_fraction` in the environment has the same effect as the call.

    The getter returns it, requests within it succeed, and one beyond it raises.
    """
    script = """
fraction = torch.cuda.get_per_process_memory_fraction(0)
total = torch.cuda.get_device_properties(0).total_memory
tell({"fraction": fraction, "within": failure(lambda: new(20 * MIB)),
      "beyond": failure(lambda: new(int(total * 0.02)))})
"""
    reported = ask(script, device, "per_process_memory_fraction:0.01", interpreter=True)

    assert reported["fraction"] == pytest.approx(0.01)
    assert reported["within"] == ""
    assert reported["beyond"].startswith("OutOfMemoryError: ")


@pytest.mark.requires(devices=2)
@pytest.mark.usefixtures("whole")
def test_set_per_process_memory_fraction_holds_for_one_device_only(device: torch.device) -> None:
    """A fraction applies to its device only."""
    before = torch.cuda.get_per_process_memory_fraction(1)
    try:
        torch.cuda.set_per_process_memory_fraction(FRACTION, device)
        assert [torch.cuda.get_per_process_memory_fraction(index) for index in range(2)] == [FRACTION, before]
        torch.cuda.set_per_process_memory_fraction(0.25, 1)
        assert [torch.cuda.get_per_process_memory_fraction(index) for index in range(2)] == [FRACTION, 0.25]
    finally:
        torch.cuda.set_per_process_memory_fraction(before, 1)
