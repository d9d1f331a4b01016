"""What the checks of work have found in the processes of a program: ``csrc/runtime/races.h``, ``memory_check.h``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.core.atomic import write_atomically
from harness.core.text import format_count

#: The variable with the checks of a process (races, memory), separated by commas, and that with the folder of findings.
CHECK, FINDINGS = "SIMCUDA_CHECK", "SIMCUDA_FINDINGS"


class WorkFinding(msgspec.Struct, frozen=True):
    """Two pieces of work that use the same memory without an order, or one whose use of memory is wrong.

    `kind`: ``race``, ``used after it was freed``, ``read before it was written``, or ``illegal access`` for what a GPU
    refuses. `earlier`, `later`: their names, twice the same for one piece of work. `bytes`: how many it is about.
    `text`: where the work was launched, and what is missing.
    """

    kind: str
    earlier: str
    later: str
    bytes: int
    text: str
    pid: int = 0

    @property
    def line(self) -> str:
        """The two pieces of work and the missing order, without the places in the program."""
        lines = self.text.strip().splitlines()
        return f"{lines[0]}: {lines[-1].strip()}" if len(lines) > 1 else self.text.strip()


def read_findings(folder: Path) -> list[WorkFinding]:
    """Return the findings of all processes, by process id. A line that a killed process left incomplete is dropped."""
    found = []
    for path in sorted(folder.glob("*.ndjson"), key=lambda path: (len(path.name), path.name)):
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                finding = msgspec.json.decode(line, type=WorkFinding)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            found.append(msgspec.structs.replace(finding, pid=int(path.stem) if path.stem.isdigit() else 0))
    return found


def summary(findings: Sequence[WorkFinding]) -> str:
    """Return how many findings of each kind there are, as in ``2 races, 1 used after it was freed``."""
    counts = Counter(finding.kind for finding in findings)
    nouns = {"race": ("race", "races"), "illegal access": ("illegal access", "illegal accesses")}
    return ", ".join(
        format_count(number, *nouns[kind]) if kind in nouns else f"{number} {kind}" for kind, number in counts.items()
    )


def write_report(path: Path, findings: Sequence[WorkFinding]) -> None:
    """Write the findings as JSON: an object with the list `findings`. Raise WriteError."""
    data = msgspec.json.format(msgspec.json.encode({"findings": findings}), indent=2)
    write_atomically(path, data + b"\n")


class RaceWatch:
    """What is found while a case runs, in its process and in the processes that it starts."""

    def __init__(self, folder: Path) -> None:
        """`folder` is made, and named in the environment of this process."""
        folder.mkdir(mode=0o700)
        self._folder = folder
        os.environ[FINDINGS] = str(folder)

    def begin(self) -> None:
        """Forget what was found so far: the processes then report it again."""
        for name in os.listdir(self._folder):
            (self._folder / name).unlink(missing_ok=True)

    def end(self) -> str:
        """Return one line about what was found; empty for nothing. Standard error has the places in the program."""
        found = read_findings(self._folder) if os.listdir(self._folder) else []
        if not found:
            return ""
        self.begin()
        others = f" (in all {summary(found)}: see standard error)" if len(found) > 1 else ""
        return f"{found[0].line}{others}"
