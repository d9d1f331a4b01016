"""A pytest plugin that records the overloads of aten that each case calls: `-p suites.operators.recorder`.

It writes to the folder that the variable `VARIABLE` names: one file per process, one line per case. Calls in further
processes or threads of a case are not recorded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

VARIABLE = "OVERLOADS_FOLDER"


class Called(TorchDispatchMode):
    """The names of the called overloads of aten."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten":
            self.names.add(func.name())
        return func(*args, **(kwargs or {}))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run the case inside the recording mode, and append its calls, whatever its outcome."""
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
