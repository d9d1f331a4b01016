"""Nightly tests, and the selection of ways to run a test for each change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import chosen_ways

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("count", "kept"), [(1, {1}), (2, {1}), (3, {1}), (4, {1}), (5, {1, 2}), (8, {2}), (26, {6, 7})]
)
def test_each_way_is_that_of_some_tests(count: int, kept: set[int]) -> None:
    names = [f"tests/acceptance/test_a.py::test_{number} spread" for number in range(60)]
    chosen = [chosen_ways(name, count) for name in names]
    assert {way for ways in chosen for way in ways} == set(range(count))
    assert {len(ways) for ways in chosen} == kept
    assert chosen == [chosen_ways(name, count) for name in names]


@pytest.mark.ways(("first", "second"), [(1, "one"), (2, "two"), (3, "three")])
def test_one_way_is_for_each_change(request: pytest.FixtureRequest, first: int, second: str) -> None:
    """All ways exist if the file is named, and those not chosen have the nightly mark."""
    (chosen,) = chosen_ways(f"{request.node.nodeid.partition('[')[0]} {('first', 'second')}", 3)
    assert (first, second) in [(1, "one"), (2, "two"), (3, "three")]
    assert (request.node.get_closest_marker("nightly") is None) is (first == chosen + 1)


#: Simulates an environment without hypothesis and other packages that only the tests need.
ONLY_FOR_SUITES = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("hypothesis", "jsonschema", "playwright", "pyte", "xmlschema"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Missing())
import pytest
sys.exit(pytest.main(["suites/nope.py", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]))
"""


def test_an_argument_that_does_not_exist_is_that_alone() -> None:
    """pytest loads this folder's conftest to look for it, where only the suites' dependencies may be installed."""
    done = subprocess.run(
        [sys.executable, "-c", ONLY_FOR_SUITES], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "file or directory not found: suites/nope.py" in done.stderr
    assert "No module named" not in done.stdout + done.stderr
