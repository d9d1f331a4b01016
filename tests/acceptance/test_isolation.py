"""The cases that share a process."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.project import journal_lines

_OWN_PROCESS = """
import pytest

@pytest.mark.parametrize("number", [0, 1, pytest.param(2, marks=pytest.mark.own_process), 3, 4])
def test_one(number): pass
"""


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        (("-n0",), [{0, 1}, {3, 4}]),
        (("-n0", "--shuffle", "--seed=1"), [{0, 1, 3, 4}]),
        (("-n1",), [{0, 1, 3, 4}]),
    ],
)
def test_own_process_keeps_others_out(
    make_project: MakeProject, options: tuple[str, ...], shared: list[set[int]]
) -> None:
    """In random order, and with workers, such cases come last, so that the others share their process."""
    project = make_project()
    project.write("suites/test_own.py", _OWN_PROCESS)
    result = project.run(*options)
    assert result.status == 0, result.tail()
    processes: dict[int, set[int]] = {}
    for line in journal_lines(result.run_dir):
        if line["event"] == "start":
            processes.setdefault(line["pid"], set()).add(int(line["case"][-2]))
    assert [numbers for numbers in processes.values() if numbers != {2}] == shared
    assert {2} in processes.values()
