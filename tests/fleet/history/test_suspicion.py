"""A single bad device is found, and failures on all devices make none suspicious."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.fleet.answers import Answers, DeviceSuspicion, judged
from tests.fleet.history import nights
from tests.fleet.matrix.runs import Machine

CASES = [f"suites/a/test_a.py::case{i}" for i in range(60)]


def fleet(
    folder: Path,
    is_bad: Callable[[int, int, int], bool],
    hosts: int = 6,
    number: int = 5,
    driver: Callable[[int, int], str] = lambda _night, _host: "570.1",
) -> dict[str, DeviceSuspicion]:
    """Return the devices of a fleet, by host. `is_bad` takes a night, a host and a case."""
    runs = []
    for night in range(number):
        for host in range(hosts):
            bad = {case: Outcome.FAILED for i, case in enumerate(CASES) if is_bad(night, host, i)}
            outcomes = dict.fromkeys(CASES, Outcome.PASSED) | bad
            runs.append(nights.night(folder, night, outcomes, Machine(f"n{host}", driver=driver(night, host))))
    with nights.history(folder, runs).reading() as database:
        found = Answers(database).suspicions
    return {each.host: each for each in found}


def test_one_bad_device_is_found_among_flakes(tmp_path: Path) -> None:
    noise = random.Random(1)
    found = fleet(tmp_path, lambda _, host, __: noise.random() < (0.2 if host == 2 else 0.02))
    assert [host for host, each in found.items() if each.suspicious] == ["n2"]
    assert next(iter(found)) == "n2"
    bad = found["n2"]
    assert bad.bad > 3 * bad.expected
    assert bad.runs == 5


@pytest.mark.nightly
def test_what_is_red_everywhere_makes_no_device_suspicious(tmp_path: Path) -> None:
    found = fleet(tmp_path, lambda night, _, case: night > 2 and case < 30)
    assert [each.bad - each.expected for each in found.values()] == pytest.approx([0.0] * 6)
    assert not any(each.suspicious for each in found.values())


@pytest.mark.nightly
def test_a_driver_is_no_fault_of_the_device_that_has_it(tmp_path: Path) -> None:
    found = fleet(
        tmp_path,
        lambda night, host, case: night > 2 and host < 2 and case < 30,
        driver=lambda night, host: "580.1" if night > 2 and host < 2 else "570.1",
    )
    assert not any(each.suspicious for each in found.values())


def test_one_broken_night_is_no_broken_device(tmp_path: Path) -> None:
    found = fleet(tmp_path, lambda night, host, _: night == 3 and host == 2)
    assert found["n2"].chance < 1e-6
    assert not found["n2"].suspicious


def test_a_device_without_siblings_is_not_judged() -> None:
    (found,) = judged([("a", "H100", "n1", 0, 0.0, 0, 0, 0, ())])
    assert (found.chance, found.suspicious) == (1.0, False)
