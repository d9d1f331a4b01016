"""The files and folders that a run of few cases must read: never one too few."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.caseid import suite_of
from harness.gating.policy import Policy
from harness.scheduling.order import Reach

FILE = "suites/a/test_x.py"


@pytest.mark.parametrize(
    ("policy", "only", "file", "folder"),
    [
        (Policy(), None, True, True),
        (Policy(cases=(f"{FILE}::*",)), None, True, True),
        (Policy(cases=(f"{FILE}::test_y[*]",)), None, True, True),
        (Policy(cases=("suites/a/*",)), None, True, True),
        (Policy(cases=("suites/a/test_*::test_y",)), None, True, True),
        (Policy(cases=("*::test_y",)), None, True, True),
        (Policy(cases=("suites/a/test_z.py::*",)), None, False, True),
        (Policy(cases=("suites/b/*",)), None, False, False),
        (Policy(cases=("suites/ab/*",)), None, False, False),
        (Policy(cases=()), None, False, False),
        (Policy(suites=("a",)), None, True, True),
        (Policy(suites=("b",)), None, False, True),
        (Policy(suites=("b",), cases=("suites/a/*",)), None, True, True),
        (Policy(exclude=("suites/a/*",)), None, True, True),
        (Policy(), {f"{FILE}::test_y"}, True, True),
        (Policy(), {"suites/a/test_z.py::test_y"}, False, True),
        (Policy(), {"suites/b/test_x.py::test_y"}, False, False),
        (Policy(), frozenset(), False, False),
        (Policy(suites=("a",)), {"suites/b/test_x.py::test_y"}, False, False),
    ],
)
def test_a_file_is_read_if_the_run_may_select_a_case_of_it(
    policy: Policy, only: set[str] | None, file: bool, folder: bool
) -> None:
    reach = Reach.of(policy, only)
    assert reach.has_file(FILE) is file
    assert reach.has_folder("suites/a") is folder
    assert reach.is_everything is (policy.suites is None and policy.cases is None and only is None)


_NAME = st.text("ab/*?:", max_size=6)


@given(st.lists(_NAME), st.none() | st.lists(st.sampled_from("ab")), st.sampled_from("ab"), _NAME)
def test_no_selected_case_is_in_a_file_that_is_not_read(
    cases: list[str], suites: list[str] | None, suite: str, name: str
) -> None:
    path = f"suites/{suite}/test_{name.replace(':', '')}.py"
    case = f"{path}::test_{name}"
    patterns = tuple(f"suites/{each}" if len(each) % 2 else each for each in cases)
    policy = Policy(cases=patterns, suites=None if suites is None else tuple(suites))
    if policy.selects(case, suite_of(case)):
        reach = Reach.of(policy, None)
        assert reach.has_file(path)
        parts = path.split("/")
        assert all(reach.has_folder("/".join(parts[:count])) for count in range(1, len(parts)))
