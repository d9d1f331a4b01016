"""Matrix products, convolutions and Fourier transforms with known answers, repeated: no result may ever be wrong.

Each result is compared on the device with the known one, bit by bit. A wrong result is reported with its iteration, its
first wrong element, and the temperature, power and clocks of the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import torch

from .. import known_answers
from ..gpu_readings import condition
from ..sizes import SIZES
from .rounds import rounds
from .watch import BATCH, Watch
from .work import WORKS

pytestmark = [pytest.mark.serial, pytest.mark.endurance]


@pytest.fixture(autouse=True)
def exact_sums() -> Iterator[None]:
    """Use one algorithm and no partial sums in 16 bits: either would change bits of a correct result."""
    with known_answers.exact_sums():
        yield


_NAMES = [pytest.param(name, marks=pytest.mark.types("float64") if "fp64" in name else ()) for name in WORKS]


@pytest.mark.parametrize("full", SIZES)
@pytest.mark.parametrize("name", _NAMES)
def test_repeated_work_has_the_known_result(
    device: torch.device, endurance: float, case_seed: int, name: str, full: bool
) -> None:
    """Every repetition gives the known result, bit by bit."""
    work = WORKS[name](device, case_seed % 1000, full)
    watch = Watch(work.expected, name)

    for _ in rounds(endurance):
        for _ in range(BATCH):
            watch.compare(work.run())
    watch.conclude()


@pytest.mark.parametrize("full", SIZES)
def test_power_steps_change_no_result(
    device: torch.device,
    endurance: float,
    case_seed: int,
    full: bool,
    record_property: Callable[[str, object], None],
) -> None:
    """Results are correct at each step from idle to full load and back. Readings at both are recorded."""
    work = WORKS["product_bf16"](device, case_seed % 1000, full)
    watch = Watch(work.expected, "product_bf16 in power steps")
    step = min(endurance / 8, 10.0)

    for number in rounds(endurance):
        idle = condition(device)
        for _ in rounds(step):
            for _ in range(BATCH):
                watch.compare(work.run())
        load = condition(device)
        if number == 0:
            record_property("endurance.idle", idle)
            record_property("endurance.load", load)
        time.sleep(step)
    watch.conclude()


@pytest.mark.parametrize("name", _NAMES)
def test_watch_reports_a_wrong_element(device: torch.device, case_seed: int, name: str) -> None:
    """Control: one wrong bit in one of 100 results is reported with its iteration and element."""
    work = WORKS[name](device, case_seed % 1000, False)
    watch = Watch(work.expected, name)
    last = work.expected.numel() - 1
    wrong = work.expected.flatten().clone()
    wrong[last] += 1
    results = [work.expected] * 100
    results[50] = wrong.view(work.expected.shape)
    place = [size - 1 for size in work.expected.shape]

    def compare_all() -> None:
        for result in results:
            watch.compare(result)

    with pytest.raises(AssertionError) as caught:
        compare_all()
    text = str(caught.value)
    assert text.startswith(f"{name}: iteration 50 has 1 wrong elements of {last + 1}; element {place} is ")
    assert f"is {wrong[last].item()!r}, expected {work.expected.flatten()[last].item()!r}; " in text
