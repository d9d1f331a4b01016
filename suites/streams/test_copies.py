"""Copies between host and accelerator: which ones return early, which ones wait, and when their data is complete."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .apis import Api
from .busy import NOT_SHOWN, POISON, TRIALS, calibrate, ever, seen_in_trials, sleep_on

pytestmark = pytest.mark.requires(accelerator=True)

ELEMENTS = 10_000_000


def pinned(offset: int = 0) -> torch.Tensor:
    """Return a pinned tensor of bytes, `offset` bytes into its storage."""
    whole = torch.zeros(ELEMENTS + offset, dtype=torch.uint8).pin_memory()
    part = whole[offset:]
    assert part.is_pinned()
    assert part.data_ptr() == whole.data_ptr() + offset
    return part


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
@pytest.mark.covers("test_cuda::TestCuda::test_copy_non_blocking")
@pytest.mark.parametrize("offset", [0, 1], ids=["whole", "slice"])
def test_non_blocking_copy_to_the_host_is_complete_after_its_event(api: Api, device: torch.device, offset: int) -> None:
    """A non-blocking copy into pinned memory is complete after an event recorded after it, also for an unaligned slice.

    The source is written after a sleep, and the target has zeros, which must be observed once right after the call (it
    does not block), and never after the event.
    """
    stream = api.stream(device)
    target, source = pinned(offset), torch.empty(ELEMENTS, dtype=torch.uint8, device=device)
    calibrate(device)

    def trial(value: int) -> bool:
        target.zero_()
        api.synchronize(device)
        sleep_on(stream)
        with api.entered(stream):
            source.fill_(value)
            target.copy_(source, non_blocking=True)
        event = stream.record_event()
        returned_early = not bool(target.any())
        event.synchronize()
        assert (target == value).all()
        return returned_early

    assert seen_in_trials(trial), NOT_SHOWN


@pytest.mark.requires(asynchronous=True)
@pytest.mark.covers("test_cuda::TestCuda::test_copy_non_blocking")
@pytest.mark.parametrize("offset", [0, 1], ids=["whole", "slice"])
def test_non_blocking_copy_to_the_device_is_complete_after_its_event(
    api: Api, device: torch.device, offset: int
) -> None:
    """A non-blocking copy from pinned memory is complete after an event recorded after it, also for an unaligned slice.

    After a sleep on the stream, the event must be observed pending once right after the call (it does not block). After
    the event, another stream reads the values, and never the poison.
    """
    stream = api.stream(device)
    source, target = pinned(offset), torch.empty(ELEMENTS, dtype=torch.uint8, device=device)
    calibrate(device)

    def trial(value: int) -> bool:
        source.fill_(value)
        target.fill_(255)
        api.synchronize(device)
        sleep_on(stream)
        with api.entered(stream):
            target.copy_(source, non_blocking=True)
        event = stream.record_event()
        returned_early = not event.query()
        event.synchronize()
        assert (target == value).all()
        return returned_early

    assert seen_in_trials(trial), NOT_SHOWN


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
@pytest.mark.covers("test_cuda::TestCuda::test_copy_non_blocking_type_conversion")
@pytest.mark.parametrize("elements", [1, 100_000])
def test_non_blocking_copies_in_a_chain_convert_in_order(api: Api, device: torch.device, elements: int) -> None:
    """A chain of non-blocking copies, device to pinned host to device with a dtype change, gives the source's values.

    The second copy reads host memory after the first has written it. All copies follow a sleep, and the host memory has
    poison, which must be observed once right after the calls.
    """
    stream = api.stream(device)
    middle = torch.empty(elements).pin_memory()
    source = torch.empty(elements, device=device)
    target = torch.empty(elements, device=device, dtype=torch.int64)
    calibrate(device)

    def trial(value: int) -> bool:
        middle.fill_(POISON)
        target.fill_(POISON)
        api.synchronize(device)
        sleep_on(stream)
        with api.entered(stream):
            source.fill_(value)
            middle.copy_(source, non_blocking=True)
            target.copy_(middle, non_blocking=True)
        returned_early = bool((middle == POISON).all())
        stream.synchronize()
        assert (target == value).all()
        return returned_early

    assert seen_in_trials(trial), NOT_SHOWN


def convert(
    api: Api, stream: torch.Stream, source: torch.Tensor, target: torch.device, *, non_blocking: bool
) -> tuple[torch.Tensor, bool]:
    """Return `source.to(target)` on a sleeping stream, and whether the stream was still busy when the call returned.

    All trials share one stream: the first one may wait for new memory, which later ones find in the stream's cache.
    """
    stream.synchronize()
    sleep_on(stream)
    with api.entered(stream):
        result = source.to(target, non_blocking=non_blocking)
        at_work = not stream.query()
    stream.synchronize()
    return result, at_work


def renew(source: torch.Tensor) -> None:
    """Change the source's values, so that memory reused from an earlier trial does not have them."""
    source.neg_()
    torch.accelerator.synchronize()


def host_source(device: torch.device) -> tuple[torch.Tensor, torch.device]:
    """Return a pinned tensor, and the device to copy it to."""
    return torch.randn(1_000_000).pin_memory(), device


def device_source(device: torch.device) -> tuple[torch.Tensor, torch.device]:
    """Return a tensor on the device, and the host to copy it to."""
    return torch.randn(1_000_000, device=device), torch.device("cpu")


BOTH_WAYS = pytest.mark.parametrize(
    "make",
    [pytest.param(host_source, marks=pytest.mark.requires(pinned_memory=True)), device_source],
    ids=["to_device", "to_host"],
)


@pytest.mark.requires(asynchronous=True)
@pytest.mark.covers("test_cuda::TestCuda::test_to_non_blocking")
@BOTH_WAYS
def test_to_non_blocking_returns_while_the_stream_is_busy(
    api: Api, device: torch.device, make: Callable[[torch.device], tuple[torch.Tensor, torch.device]]
) -> None:
    """`to(…, non_blocking=True)` from or to pinned memory returns while the stream sleeps, in at least one trial.

    A host result is pinned, and has the values once the stream completes.
    """
    source, target = make(device)
    stream = api.stream(device)
    calibrate(device)
    api.synchronize(device)

    def returned_early() -> bool:
        renew(source)
        result, at_work = convert(api, stream, source, target, non_blocking=True)
        assert torch.equal(result.cpu(), source.cpu())
        assert result.is_pinned() == (target.type == "cpu")
        return at_work

    assert ever(returned_early)


@pytest.mark.covers("test_cuda::TestCuda::test_to_non_blocking")
@BOTH_WAYS
def test_to_blocking_returns_when_the_stream_is_done(
    api: Api, device: torch.device, make: Callable[[torch.device], tuple[torch.Tensor, torch.device]]
) -> None:
    """`to(…, non_blocking=False)` waits for the stream in every trial, and its host result is not pinned."""
    source, target = make(device)
    stream = api.stream(device)
    calibrate(device)
    api.synchronize(device)

    for _ in range(TRIALS):
        renew(source)
        result, at_work = convert(api, stream, source, target, non_blocking=False)
        assert not at_work
        assert torch.equal(result.cpu(), source.cpu())
        assert not result.is_pinned()


@pytest.mark.covers("test_cuda::TestCuda::test_to_cpu_blocking_by_default")
def test_to_the_cpu_blocks_by_default(api: Api, device: torch.device) -> None:
    """By default, a copy to the host waits for the stream, has the values on return, and its result is not pinned."""
    stream = api.stream(device)
    source = torch.empty(1_000_000, device=device)
    calibrate(device)

    for value in range(1, TRIALS + 1):
        source.fill_(POISON)
        api.synchronize(device)
        sleep_on(stream)
        with api.entered(stream):
            source.fill_(value)
            result = source.to("cpu")
            at_work = not stream.query()
        assert not at_work
        assert (result == value).all()
        assert not result.is_pinned()
