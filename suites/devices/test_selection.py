"""The current device: its scope, and the placement of new tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.requires(accelerator=True)


def module(device: torch.device) -> Any:
    return torch.get_device_module(device)


def current(device: torch.device) -> tuple[int, int]:
    """Return the current device according to the accelerator and to the device's module, which must agree."""
    return torch.accelerator.current_device_index(), module(device).current_device()


@pytest.mark.covers("test_cuda::TestCuda::test_device_context_manager")
def test_device_without_an_index_is_the_current_device(device: torch.device) -> None:
    """A tensor created on a device type without an index is on the current device and has its index."""
    x = torch.empty(1, device=device.type)

    assert x.device == torch.device(device.type, torch.accelerator.current_device_index())
    assert x.get_device() == torch.accelerator.current_device_index()


@pytest.mark.covers("test_cuda::TestCuda::test_device_context_manager")
@pytest.mark.parametrize("how", ["module", "accelerator"])
def test_device_context_restores_the_current_device(device: torch.device, how: str) -> None:
    """A device block restores the current device, also after an exception; with None it has no effect."""
    before = current(device)

    def block(index: int | None) -> None:
        with module(device).device(index) if how == "module" else torch.accelerator.device_index(index):
            assert current(device) == before
            raise LookupError

    for index in (device.index, None):
        with pytest.raises(LookupError):
            block(index)
        assert current(device) == before


@pytest.mark.parametrize("beyond", [0, 1, 100], ids=lambda beyond: f"by_{beyond}")
def test_set_device_index_to_a_missing_device_is_refused(device: torch.device, beyond: int) -> None:
    """Selecting a missing device, or creating a tensor on it, raises; the current device does not change and works."""
    before = current(device)
    index = torch.accelerator.device_count() + beyond

    for attempt in (
        lambda: torch.accelerator.set_device_index(index),
        lambda: torch.empty(1, device=torch.device(device.type, index)),
        lambda: torch.zeros(1).to(torch.device(device.type, index)),
    ):
        with pytest.raises((RuntimeError, ValueError, AssertionError), match=r"(?i)device"):
            attempt()
        assert current(device) == before

    assert torch.ones(2, device=device).sum().item() == 2


def _by_set_device(device: torch.device, index: int) -> None:
    module(device).set_device(index)


def _by_text(device: torch.device, index: int) -> None:
    module(device).set_device(f"{device.type}:{index}")


def _by_device(device: torch.device, index: int) -> None:
    module(device).set_device(torch.device(device.type, index))


def _by_index(_: torch.device, index: int) -> None:
    torch.accelerator.set_device_index(index)


def _by_accelerator_device(device: torch.device, index: int) -> None:
    torch.accelerator.set_device_index(torch.device(device.type, index))


def _by_accelerator_text(device: torch.device, index: int) -> None:
    torch.accelerator.set_device_index(f"{device.type}:{index}")


@pytest.mark.requires(devices=2)
@pytest.mark.parametrize(
    "choose",
    [_by_set_device, _by_text, _by_device, _by_index, _by_accelerator_device, _by_accelerator_text],
    ids=["module", "module_by_text", "module_by_device", "accelerator", "accelerator_by_device", "accelerator_by_text"],
)
def test_set_device_makes_each_valid_index_current(
    device: torch.device, choose: Callable[[torch.device, int], None]
) -> None:
    """`set_device` and `set_device_index` make each device current, first to last and back.

    Both functions that return the current device then return its index, the current stream is its stream, and a tensor
    without an index is on it.
    """
    before = torch.accelerator.current_device_index()
    count = torch.accelerator.device_count()
    try:
        for index in (*range(count), *reversed(range(count))):
            choose(device, index)
            assert current(device) == (index, index)
            assert torch.accelerator.current_stream().device_index == index
            assert torch.ones(1, device=device.type).get_device() == index
    finally:
        torch.accelerator.set_device_index(before)


@pytest.mark.requires(devices=2)
@pytest.mark.covers("test_cuda::TestCuda::test_multi_device_context_manager")
@pytest.mark.parametrize("how", ["module", "accelerator"])
def test_device_contexts_nest_across_devices(device: torch.device, how: str) -> None:
    """Within a device's block, the device is current; nested blocks and exceptions restore the previous device."""
    before = current(device)

    def entered(index: int) -> Any:
        return module(device).device(index) if how == "module" else torch.accelerator.device_index(index)

    def made_on() -> int | None:
        return torch.empty(1, device=device.type).device.index

    def block() -> None:
        with entered(1):
            assert (*current(device), made_on()) == (1, 1, 1)
            with entered(0):
                assert (*current(device), made_on()) == (0, 0, 0)
            assert (*current(device), made_on()) == (1, 1, 1)
            raise LookupError

    with pytest.raises(LookupError):
        block()

    assert current(device) == before


@pytest.mark.requires(devices=2)
@pytest.mark.covers("test_cuda::TestCuda::test_multi_device_stream_context_manager")
def test_stream_context_selects_its_device(device: torch.device) -> None:
    """The block of a stream on another device makes that device and stream current.

    Nested blocks restore both at their ends.
    """
    streams = [torch.Stream(torch.device(device.type, index)) for index in (0, 1)]
    before = current(device), [torch.accelerator.current_stream(index) for index in (0, 1)]

    with streams[1]:
        assert current(device) == (1, 1)
        assert torch.accelerator.current_stream().stream_id == streams[1].stream_id
        with streams[0]:
            assert current(device) == (0, 0)
            assert torch.accelerator.current_stream().stream_id == streams[0].stream_id
            assert torch.accelerator.current_stream(1).stream_id == streams[1].stream_id
        assert current(device) == (1, 1)

    assert (current(device), [torch.accelerator.current_stream(index) for index in (0, 1)]) == before


@pytest.mark.requires(devices=2)
def test_result_is_on_the_device_of_its_operands(device: torch.device) -> None:
    """The result of an operation is on its operands' device, whichever device is current."""
    for chosen, place in ((0, 1), (1, 0)):
        other = torch.device(device.type, place)
        x = torch.arange(6.0, device=other)

        with torch.accelerator.device_index(chosen):
            results = [x + 1, x.view(2, 3) @ x.view(3, 2), x.sum(), torch.empty_like(x), x[2:], x.clone(), x.int()]
            assert current(device) == (chosen, chosen)

        assert {result.device for result in results} == {other}
        assert results[0].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.requires(devices=2)
def test_operands_of_two_devices_are_refused(device: torch.device) -> None:
    """An operation on tensors of two devices raises and names both; a zero-dimensional CPU tensor is accepted."""
    here, there = torch.ones(3, device=device), torch.ones(3, device=torch.device(device.type, 1))

    for operands in ((here, there), (there, here)):
        with pytest.raises(RuntimeError) as refusal:
            torch.add(*operands)
        assert all(str(one.device) in str(refusal.value) for one in operands)

    for total in (there + torch.tensor(2.0), torch.tensor(2.0) + there):
        assert total.device == there.device
        assert total.tolist() == [3, 3, 3]
