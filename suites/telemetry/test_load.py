"""Readings under load, compared with readings of the same device at rest."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from ..streams.busy import calibrate, ever, sleep_on

pytestmark = [pytest.mark.requires(device="cuda", nvml=True, mig=False), pytest.mark.timeout(300)]

#: Seconds. NVML averages over up to a second, so readings start after a longer load.
LOAD, REST = 3.0, 3.0


def under_load(device: torch.device, read: Callable[[torch.device], int]) -> list[int]:
    """Return the readings from the second half of `LOAD` seconds of matrix products, and check the last product.

    The factors are ones and minus ones. The sums of 4096 of them are whole numbers, which float16 holds up to 2048.
    """
    a, b = (torch.randint(0, 2, (4096, 4096), device=device).mul(2).sub(1).to(torch.float16) for _ in range(2))
    out, readings = torch.full_like(a, -1), []
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < LOAD:
        for _ in range(50):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize(device)
        if passed > LOAD / 2:
            readings.append(read(device))
    assert_product(out, a, b)
    return readings


def assert_product(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Check a product of whole numbers: each entry of some rows, and all rows by Freivalds' method (times a vector)."""
    import numpy as np

    left, right = (x.cpu().double().numpy() for x in (a, b))
    product = found.cpu().double().numpy()
    assert (product[::509] == left[::509] @ right).all()
    vector = np.random.default_rng(7).choice([-1.0, 1.0], len(right))
    assert (product @ vector == left @ (right @ vector)).all()


def at_rest(device: torch.device, read: Callable[[torch.device], int]) -> list[int]:
    """Return the readings from the second half of `REST` seconds without work of this process."""
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
    """The median power draw under load is higher than at rest, in at least one of three trials.

    Other processes may use the device.
    """
    assert any(
        median(under_load(device, torch.cuda.power_draw)) > median(at_rest(device, torch.cuda.power_draw))
        for _ in range(3)
    )


@pytest.mark.requires(silicon=True)
def test_utilization_rises_under_load(device: torch.device) -> None:
    """Utilization under load is higher than at rest and at least a half, in at least one of three trials."""

    def rises() -> bool:
        rest = median(at_rest(device, torch.cuda.utilization))
        load = median(under_load(device, torch.cuda.utilization))
        return load >= 50 and load > rest

    assert any(rises() for _ in range(3))


@pytest.mark.requires(silicon=True)
@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_clock_speed")
def test_clock_rate_does_not_fall_under_load(device: torch.device) -> None:
    """The clock rate under load is at least half of that at rest after it.

    A device may reduce its clock when idle, but under load only because of heat or power.
    """
    load = median(under_load(device, torch.cuda.clock_rate))
    rest = median(at_rest(device, torch.cuda.clock_rate))

    assert load > 0
    assert load >= 0.5 * rest


@pytest.mark.requires(silicon=True)
@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_temperature")
def test_temperature_does_not_fall_under_load(device: torch.device) -> None:
    """After load, the device is not colder than before, in at least one of three trials."""

    def not_colder() -> bool:
        before = median(at_rest(device, torch.cuda.temperature))
        return max(under_load(device, torch.cuda.temperature)) >= before

    assert any(not_colder() for _ in range(3))


def test_temperature_is_read_while_the_device_works(device: torch.device) -> None:
    """A reading does not wait for the device: it returns while a stream sleeps, observed at least once."""
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
