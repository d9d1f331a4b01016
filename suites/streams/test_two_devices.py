"""Streams, events and copies across two devices."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from .apis import Api
from .busy import NOT_SHOWN, POISON, Relay, calibrate, ever, seen_in_trials, sleep_on

pytestmark = [
    pytest.mark.requires(accelerator=True, devices=2),
    pytest.mark.covers("test_cuda::TestCuda::test_streams"),
]


@pytest.fixture
def other(device: torch.device) -> torch.device:
    """Return the second of the two devices."""
    return torch.device(device.type, 1)


def test_current_stream_of_each_device_is_its_own(api: Api, device: torch.device, other: torch.device) -> None:
    """Selecting a stream on one device makes that device current and does not affect the other device's current stream.

    Leaving the block restores the device and both streams. A stream created without a device is on the current device.
    """
    for index, (left, chosen) in product(range(2), ((device, other), (other, device))):
        with torch.accelerator.device_index(index):
            before = [api.current_stream(d) for d in (left, chosen)], torch.accelerator.current_device_index()
            stream = api.stream(chosen)
            assert torch.accelerator.current_device_index() == before[1] == index
            assert api.stream().device.index == index

            with api.entered(stream):
                assert torch.accelerator.current_device_index() == chosen.index
                assert api.stream().device == chosen
                assert api.current_stream(chosen).stream_id == stream.stream_id
                assert api.current_stream(left) == before[0][0]

            after = [api.current_stream(d) for d in (left, chosen)], torch.accelerator.current_device_index()
            assert after == before


def test_streams_of_different_devices_differ(api: Api, device: torch.device, other: torch.device) -> None:
    """The current streams of two devices are not equal, even if they have the same id."""
    assert api.current_stream(device) != api.current_stream(other)


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
def test_wait_stream_for_a_stream_of_another_device(api: Api, device: torch.device, other: torch.device) -> None:
    """A stream can wait for an event of another device.

    A copy across devices after the wait reads the written data; without the wait, poison must be observed. A copy
    between devices is ordered after the current streams of both, and the writer is neither.
    """
    for written, read in ((device, other), (other, device)):
        relay = Relay(api.stream(written), api.stream(read))
        assert relay.shows_wrong_order(), NOT_SHOWN
        assert relay.always_in_order(lambda relay=relay: relay.reader.wait_stream(relay.writer))


@pytest.mark.requires(asynchronous=True)
def test_copy_between_devices_waits_for_the_streams_of_both(
    api: Api, device: torch.device, other: torch.device
) -> None:
    """A copy between devices starts after the work on the current streams of both, without explicit synchronization.

    Work on the target's current stream reads the copied data. In turn, the source is written late, or the target is
    overwritten with poison late.
    """
    for (here, there), late in product(((device, other), (other, device)), ("source", "target")):
        stream = api.stream(here if late == "source" else there)
        source = torch.zeros(1 << 16, dtype=torch.int32, device=here)
        target = torch.zeros(1 << 16, dtype=torch.int32, device=there)
        calibrate(stream.device)

        def trial(
            value: int,
            late: str = late,
            stream: torch.Stream = stream,
            source: torch.Tensor = source,
            target: torch.Tensor = target,
        ) -> bool:
            source.fill_(POISON if late == "source" else value)
            target.fill_(POISON)
            for each in (device, other):
                api.synchronize(each)
            with api.entered(stream):
                sleep_on(stream)
                if late == "source":
                    source.fill_(value)
                else:
                    target.fill_(POISON)
                target.copy_(source, non_blocking=True)
                at_work = not stream.query()
                after = target + 0
                assert (after == value).all()
            return at_work

        assert seen_in_trials(trial), NOT_SHOWN


@pytest.mark.requires(asynchronous=True)
def test_synchronize_of_a_device_does_not_wait_for_another(api: Api, device: torch.device, other: torch.device) -> None:
    """Synchronizing one device does not wait for another: it is observed to return while the other sleeps."""
    for asleep, awake in ((device, other), (other, device)):
        sleeping = api.stream(asleep)
        x = torch.zeros(16, device=awake)
        calibrate(asleep)

        def overtaken(
            asleep: torch.device = asleep,
            awake: torch.device = awake,
            sleeping: torch.Stream = sleeping,
            x: torch.Tensor = x,
        ) -> bool:
            api.synchronize(asleep)
            sleep_on(sleeping)
            x.add_(1)
            api.synchronize(awake)
            still_asleep = not sleeping.query()
            api.synchronize(asleep)
            return still_asleep

        assert ever(overtaken)


def test_elapsed_time_between_events_of_two_devices_is_refused(
    api: Api, device: torch.device, other: torch.device
) -> None:
    """`elapsed_time` between events of different devices raises."""
    events = []
    for each in (device, other):
        stream = api.stream(each)
        with api.entered(stream):
            event = api.event(each, enable_timing=True)
            event.record(stream)
        event.synchronize()
        events.append(event)

    chosen = torch.accelerator.current_device_index()
    for first, second in (events, events[::-1]):
        with pytest.raises((ValueError, RuntimeError), match=r"(?i)device|handle"):
            first.elapsed_time(second)
    torch.accelerator.set_device_index(chosen)  # a generic event leaves the device of the failed call current
