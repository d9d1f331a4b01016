"""Which quick tests fit into a budget, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.ready.plan import QuickTest, plan
from harness.ready.quick_tests import PROMISES, TABLE, quick_tests

CONTEXT = QuickTest("context", 2.0, 1)


@pytest.mark.parametrize(
    ("tests", "budget", "gpus", "run", "skipped"),
    [
        pytest.param([CONTEXT], 10, 1, ("context",), {}, id="it fits"),
        pytest.param([CONTEXT], 1, 1, (), {"context": "it takes about 2 s, and 1 s of the budget of 1 s are left"}),
        pytest.param(
            [CONTEXT, QuickTest("a", 1, 3, ("context",))],
            1,
            1,
            (),
            {
                "context": "it takes about 2 s, and 1 s of the budget of 1 s are left",
                "a": "it follows context, which is skipped",
            },
            id="what follows is skipped too",
        ),
        pytest.param(
            [QuickTest("few", 1, 1), QuickTest("many", 1, 5), QuickTest("long", 10, 6)],
            100,
            1,
            ("many", "few", "long"),
            {},
            id="most faults per second first",
        ),
        pytest.param(
            [QuickTest("poor", 1, 1), QuickTest("good", 1, 9, after=("first",)), QuickTest("first", 1, 0)],
            100,
            1,
            ("first", "good", "poor"),
            {},
            id="a test that a good one waits for comes early",
        ),
        pytest.param(
            [QuickTest("long", 10, 100), QuickTest("short", 1, 1)],
            5,
            1,
            ("short",),
            {"long": "it takes about 10 s, and 5 s of the budget of 5 s are left"},
            id="a shorter one may still fit",
        ),
        pytest.param(
            [QuickTest("all", 1, 100, group=True), QuickTest("one", 1, 1)], 5, 2, ("one", "all"), {}, id="groups last"
        ),
        pytest.param(
            [QuickTest("all", 1, 100, group=True)],
            5,
            1,
            (),
            {"all": "it needs two whole GPUs that one process can use together"},
            id="one GPU is no group",
        ),
        pytest.param([QuickTest("a", 1, 1, lacks="no such unit")], 5, 1, (), {"a": "no such unit"}, id="lacks"),
    ],
)
def test_plan(tests: list[QuickTest], budget: float, gpus: int, run: tuple[str, ...], skipped: dict[str, str]) -> None:
    made = plan(tests, budget, gpus)

    assert (made.run, made.skipped) == (run, skipped)


def test_tests_that_wait_for_each_other_are_an_error() -> None:
    with pytest.raises(ValueError, match="the tests a, b wait for each other"):
        plan([QuickTest("a", 1, 1, after=("b",)), QuickTest("b", 1, 1, after=("a",))], 9, 1)


@given(st.floats(0, 200), st.integers(0, 8), st.booleans())
def test_each_test_of_the_table_is_run_or_skipped_with_a_reason(budget: float, gpus: int, full: bool) -> None:
    tests = quick_tests(full=full)
    made = plan(tests, budget, gpus)

    seconds = {test.name: test.seconds for test in tests}
    assert sorted([*made.run, *made.skipped]) == sorted(seconds)
    assert sum(seconds[name] for name in made.run) <= budget
    assert all(made.skipped.values())
    for test in tests:
        if test.name in made.run:
            assert all(made.run.index(name) < made.run.index(test.name) for name in test.after)


def test_the_default_budget_has_time_for_all_tests_of_eight_gpus() -> None:
    assert plan(quick_tests(full=True), 30.0, 8).skipped == {}


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_each_test_can_be_loaded_and_says_what_it_expects(entry: object) -> None:
    assert callable(entry.load())  # type: ignore[attr-defined]
    assert entry.promise  # type: ignore[attr-defined]


def test_each_promise_is_of_a_test() -> None:
    names = {"product" if entry.name.startswith("product_") else entry.name for entry in TABLE}

    assert names == {*PROMISES}
