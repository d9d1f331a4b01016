"""A pytest plugin that records the overloads of aten that each case calls: `-p tests.breaks.calls.overload_recorder`.

It writes to the folder that the variable `VARIABLE` names: one file per process, one line per case. Calls in further
processes or threads of a case are not recorded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

VARIABLE = "OVERLOADS_FOLDER"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run the case inside the recording mode, and append its calls, whatever its outcome."""
    from suites.operators.variants import Called  # only now: pytest rewrites the assertions of suites

    called = Called()
    try:
        with called:
            yield
    finally:
        with Path(os.environ[VARIABLE], f"{os.getpid()}.txt").open("a", encoding="utf-8") as file:
            file.write(f"{item.nodeid}\t{' '.join(sorted(called.names))}\n")


def read(folder: Path) -> dict[str, list[str]]:
    """Return the ids of the cases that call each overload, in order."""
    found: dict[str, list[str]] = {}
    for file in folder.glob("*.txt"):
        for line in file.read_text(encoding="utf-8").splitlines():
            case, _, names = line.partition("\t")
            for name in names.split():
                found.setdefault(name, []).append(case)
    return {name: sorted(set(cases)) for name, cases in found.items()}
