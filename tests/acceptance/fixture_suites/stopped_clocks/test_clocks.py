"""Clocks that stop or go backwards, as freezegun and others patch them, under all their names in modules."""

import sys
import time
from typing import Any

import pytest

EXPECTED = {
    "test_before": "passed",
    "test_stopped": "passed",
    "test_stopped_by_a_fixture": "passed",
    "test_begins_to_stop": "passed",
    "test_left_stopped": {
        "batch": "contaminated: did not restore subprocess._time",
        "case": "contaminated: did not restore subprocess._time",
        "none": "passed",
    },
    "test_after": "passed",
}
OPTIONS = ["--case-timeout=30"]
NAMES = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
REAL = {name: getattr(time, name) for name in NAMES}


def stop(monkeypatch: Any = None, *, at: float = -1.3e9) -> Any:
    fakes = {id(real): (lambda value: lambda: value)(type(real())(at)) for real in REAL.values()}
    for name, module in list(sys.modules.items()):
        if name == __name__ or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in fakes:
                if monkeypatch is None:
                    setattr(module, attribute, fakes[id(value)])
                else:
                    monkeypatch.setattr(module, attribute, fakes[id(value)])


@pytest.fixture
def stopped(monkeypatch: Any) -> Any:
    stop(monkeypatch)


def test_before() -> None: ...


def test_stopped() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        stop(monkeypatch)


@pytest.mark.usefixtures("stopped")
def test_stopped_by_a_fixture() -> None:
    REAL["time"]()


def test_begins_to_stop(monkeypatch: Any) -> None:
    stop(monkeypatch, at=6e8)


def test_left_stopped() -> None:
    stop()


def test_after() -> None: ...
