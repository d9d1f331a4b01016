"""Nights of fictitious machines, as run directories and in a history."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.outcome import Outcome
from harness.fleet import record
from harness.fleet.store import Store
from tests.fleet.matrix.runs import CASES, PASSED, Machine, lines, write

DAY = 86_400
#: Noon of a day, when a night begins.
BEGIN = 1_760_011_200.0
HOSTILE = "suites/a/test_a.py::<script>alert(1)</script>\"'&amp;\u202e"


def run_id(night: int, host: str = "n1") -> str:
    return f"night{night}-{host}"


def night(
    folder: Path,
    number: int,
    outcomes: Mapping[str, Outcome] | None = None,
    machine: Machine | None = None,
    messages: Mapping[str, str] | None = None,
    **changes: Any,
) -> Path:
    """Write the run directory of a machine in a night; other cases passed. `messages` are those of failed cases."""
    machine = machine or Machine()
    head = {"run_id": run_id(number, machine.host), "t": BEGIN + number * DAY, **changes}
    made = lines(machine, {**PASSED, **(outcomes or {})}, **head)
    for line in made:
        if line["event"] == "finish" and line["case"] in (messages or {}):
            line["message"] = (messages or {})[line["case"]]
    return write(folder / head["run_id"], made, machine)


def hostile(folder: Path) -> list[Path]:
    """Write three runs with hostile texts: the case `HOSTILE` is red in the second one."""
    bad = {HOSTILE: Outcome.FAILED, CASES[1]: Outcome.GATED}
    return [
        night(folder, 0, {HOSTILE: Outcome.PASSED}),
        night(folder, 1, bad, messages={HOSTILE: "<img src=x onerror=alert(1)>\u202e\x1b[31m"}),
        night(folder, 1, {HOSTILE: Outcome.PASSED}, Machine("<b>n2</b>", driver="<i>")),
    ]


def history(folder: Path, runs: Sequence[Path]) -> Store:
    """Create a history of these runs."""
    store = Store(folder / "history")
    for path in runs:
        store.add(record.read_history_record(path))
    return store


def regression(folder: Path, nights: int = 6, at: int = 3) -> Store:
    """Create a history of two machines. In the night `at`, one gets a new driver, and from then on a case fails there.

    The nights are created once per process, and copied, since adding twelve runs takes a second.
    """
    shutil.copytree(_regression(nights, at).name, folder, dirs_exist_ok=True)
    return Store(folder / "history")


@functools.cache
def _regression(nights: int, at: int) -> tempfile.TemporaryDirectory[str]:
    made, kept = [], tempfile.TemporaryDirectory()
    folder = Path(kept.name)
    for number in range(nights):
        new = number >= at
        driver = "580.1" if new else "570.1"
        bad = {CASES[0]: Outcome.FAILED} if new else {}
        message = {CASES[0]: f"wrong sum at 0x7f{number:04x}: {number}.5"}
        made.append(night(folder, number, bad, Machine("n1", driver=driver), message))
        made.append(night(folder, number, {}, Machine("n2", driver="570.1")))
    history(folder, made)
    return kept
