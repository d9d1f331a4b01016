"""The faults of devices as breaks: which there are, and which cases they have."""

from __future__ import annotations

import pytest

from harness.catalog.catalog import CatalogEntry
from harness.sim.native.faults import fault_catalogue
from tests.breaks import faults
from tests.breaks.breaks import BreakError
from tests.breaks.faults import fault_breaks

SUITE = "suites/streams/test_events.py"


def test_every_fault_of_a_device_is_a_break() -> None:
    made = fault_breaks("soft", [], [SUITE])
    assert {name: each.breaks for name, each in made.items()} == fault_catalogue("soft")
    assert {(each.device, each.suites, each.fault == name) for name, each in made.items()} == {("soft", (SUITE,), True)}


def test_a_fault_may_have_a_probability() -> None:
    (each,) = fault_breaks("soft", ["event_early:0.5"], [SUITE]).values()
    assert (each.name, each.fault, each.breaks) == (
        "event_early:0.5",
        "event_early:0.5",
        fault_catalogue("soft")["event_early"],
    )


@pytest.mark.parametrize(
    ("device", "names", "message"),
    [
        ("cpu", [], "--faults='cpu': expected one of .*soft"),
        ("soft", ["event_erly"], "--only: expected the name of a fault of soft, .* did you mean 'event_early'?"),
    ],
)
def test_an_unknown_device_or_fault_is_refused(device: str, names: list[str], message: str) -> None:
    with pytest.raises(BreakError, match=message):
        fault_breaks(device, names, [SUITE])


def test_the_default_is_the_suites_with_cases_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[tuple[str, dict[str, object]]] = [
        ("gpu", {"device": "cuda"}),
        ("any", {}),
        ("each", {"accelerator": True}),
    ]
    entries = [
        CatalogEntry(f"suites/{suite}/test_a.py::test_a", suite, "", 1, "", (mark,), (), None) for suite, mark in wanted
    ]
    monkeypatch.setattr(faults, "collect_catalog", lambda _: entries)
    assert {each.suites for each in fault_breaks("simcuda", [], []).values()} == {("suites/each", "suites/gpu")}
    assert {each.suites for each in fault_breaks("soft", [], []).values()} == {("suites/each",)}
    del entries[0], entries[1]  # only a suite for any device is left
    with pytest.raises(BreakError, match="no suite in suites has cases that require an accelerator"):
        fault_breaks("soft", [], [])
