"""Readings under load: a device that works hard says so, compared with itself at rest."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from ..streams.busy import calibrate, ever, sleep_on

pytestmark = [pytest.mark.requires(device="cuda", nvml=True, mig=False), pytest.mark.timeout(300)]

#: Seconds. NVML averages over up to a second, so a load is read when it has lasted longer.
LOAD, REST = 3.0, 3.0


def under_load(device: torch.device, read: Callable[[torch.device], int]) -> list[int]:
    """Readings taken from the second half of some seconds of matrix products without a pause."""
    a, b = (torch.randn(4096, 4096, device=device, dtype=torch.float16) for _ in range(2))
    out, readings = torch.empty_like(a), []
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < LOAD:
        for _ in range(50):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize(device)
        if passed > LOAD / 2:
            readings.append(read(device))
    return readings


def at_rest(device: torch.device, read: Callable[[torch.device], int]) -> list[int]:
    """Readings taken from the second half of some seconds without work of this process."""
    torch.cuda.synchronize(device)
    time.sleep(REST / 2)
    readings = []
    for _ in range(15):
        time.sleep(REST / 30)
        readings.append(read(device))
    return readings


def median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


@pytest.mark.requires(silicon=True)
@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_power_draw")
def test_power_draw_rises_under_load(device: torch.device) -> None:
    """Contract: the power drawn in the middle of heavy work is higher than at rest: of the medians, in one trial of
    three at least (a neighbour may keep the device busy in one)."""
    assert any(
        median(under_load(device, torch.cuda.power_draw)) > median(at_rest(device, torch.cuda.power_draw))
        for _ in range(3)
    )


@pytest.mark.requires(silicon=True)
def test_utilization_rises_under_load(device: torch.device) -> None:
    """Contract: the share of time in which a kernel runs is higher in the middle of heavy work than at rest, and at
    least a half then."""

    def rises() -> bool:
        rest = median(at_rest(device, torch.cuda.utilization))
        load = median(under_load(device, torch.cuda.utilization))
        return load >= 50 and load > rest

    assert any(rises() for _ in range(3))


@pytest.mark.requires(silicon=True)
@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_clock_speed")
def test_clock_rate_does_not_fall_under_load(device: torch.device) -> None:
    """Contract: the clock in the middle of heavy work is at least half of what it is at rest after it: a device
    may clock down when idle, not when busy, other than for heat and power."""
    load = median(under_load(device, torch.cuda.clock_rate))
    rest = median(at_rest(device, torch.cuda.clock_rate))

    assert load > 0
    assert load >= 0.5 * rest


@pytest.mark.requires(silicon=True)
@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_temperature")
def test_temperature_does_not_fall_under_load(device: torch.device) -> None:
    """Contract: after heavy work the device is not colder than before it, in one trial of three at least."""

    def not_colder() -> bool:
        before = median(at_rest(device, torch.cuda.temperature))
        return max(under_load(device, torch.cuda.temperature)) >= before

    assert any(not_colder() for _ in range(3))


def test_temperature_is_read_while_the_device_works(device: torch.device) -> None:
    """Contract: a reading does not wait for the device: it is had while a stream is asleep, which must once be seen."""
    stream = torch.cuda.Stream(device)
    torch.cuda.temperature(device)
    calibrate(device)

    def had_meanwhile() -> bool:
        sleep_on(stream, 500)
        torch.cuda.temperature(device)
        asleep = not stream.query()
        stream.synchronize()
        return asleep

    assert ever(had_meanwhile)
