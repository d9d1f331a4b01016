"""Which quick tests fit into a budget, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.ready.quick_tests import FIRST, TABLE, Entry, plan


def row(name: str, seconds: float, finds: float, *, group: bool = False) -> Entry:
    return Entry(name, "", "", seconds, seconds, finds, "", group)


@pytest.mark.parametrize(
    ("tests", "budget", "gpus", "run", "skipped"),
    [
        pytest.param([row(FIRST, 2, 1)], 10, 1, (FIRST,), {}, id="it fits"),
        pytest.param(
            [row(FIRST, 2, 1), row("a", 1, 3)],
            1,
            1,
            (),
            {
                FIRST: "it takes about 2 s, and 1 s of the budget of 1 s are left",
                "a": "it follows context, which is skipped",
            },
            id="what follows is skipped too",
        ),
        pytest.param(
            [row("few", 1, 1), row("many", 1, 5), row("long", 10, 6), row(FIRST, 50, 1)],
            100,
            1,
            (FIRST, "many", "few", "long"),
            {},
            id="most faults per second first",
        ),
        pytest.param(
            [row("long", 10, 100), row("short", 1, 1)],
            5,
            1,
            ("short",),
            {"long": "it takes about 10 s, and 5 s of the budget of 5 s are left"},
            id="a shorter one may still fit",
        ),
        pytest.param([row("all", 1, 100, group=True), row("one", 1, 1)], 5, 2, ("one", "all"), {}, id="groups last"),
        pytest.param(
            [row("all", 1, 100, group=True)],
            5,
            1,
            (),
            {"all": "it needs two whole GPUs that one process can use together"},
            id="one GPU is no group",
        ),
    ],
)
def test_plan(tests: list[Entry], budget: float, gpus: int, run: tuple[str, ...], skipped: dict[str, str]) -> None:
    made = plan(budget, gpus, full=True, table=tests)

    assert (made.run, made.skipped) == (run, skipped)


def test_a_simulated_device_lacks_what_it_takes_from_the_cpu() -> None:
    tests = [row("fourier", 1, 1)]

    assert plan(5, 1, full=True, table=tests).run == ("fourier",)
    assert plan(5, 1, full=False, table=tests).skipped == {
        "fourier": "a simulated device has no library of its own for it"
    }


@given(st.floats(0, 200), st.integers(0, 8), st.booleans())
def test_each_test_of_the_table_is_run_or_skipped_with_a_reason(budget: float, gpus: int, full: bool) -> None:
    made = plan(budget, gpus, full=full)

    seconds = {entry.name: entry.full if full else entry.small for entry in TABLE}
    assert sorted([*made.run, *made.skipped]) == sorted(seconds)
    assert sum(seconds[name] for name in made.run) <= budget
    assert all(made.skipped.values())
    assert made.run[:1] in ((FIRST,), ())


def test_the_default_budget_has_time_for_all_tests_of_eight_gpus() -> None:
    assert plan(30.0, 8, full=True).skipped == {}


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_each_test_can_be_loaded_and_says_what_it_expects(entry: Entry) -> None:
    assert callable(entry.load())
    assert entry.holds
