"""The statement of a run about the levels of conformance of its device.

It is read from the file that `harness conformance --keep` has written, and not verified; `harness verify` does that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.text import escape_invalid_xml, single_line
from harness.fleet.folders import is_plain
from harness.tools.conformance import FAILED, FILE_NAME, INCOMPLETE, NOT_APPLICABLE, PASSED

#: Maximum levels of a run, and bytes of its file.
MOST_LEVELS = 50
MOST_BYTES = 64 << 20
_STATES = (PASSED, FAILED, NOT_APPLICABLE, INCOMPLETE)


@dataclass(frozen=True, slots=True)
class RunLevel:
    """A level: its state, how many of its cases passed, and the hash of its list."""

    level: str
    state: str
    passed: int
    cases: int
    hash: str


def read_levels(run_dir: Path, run_id: str) -> tuple[tuple[RunLevel, ...], str]:
    """Return the levels that a run states, and a doubt, or "". Both are empty without a statement."""
    path = run_dir / FILE_NAME
    if not is_plain(path):
        return (), ""
    try:
        if path.stat().st_size > MOST_BYTES:
            return (), f"{FILE_NAME} is too large"
        statement = json.loads(path.read_bytes())["statement"]
        if statement["run"] != run_id:
            return (
                (),
                f"{FILE_NAME} is about another run: {single_line(escape_invalid_xml(str(statement['run'])), 100)}",
            )
        return tuple(_level(level) for level in statement["levels"][:MOST_LEVELS]), ""
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return (), f"{FILE_NAME} is no statement of harness conformance"


def _level(row: Any) -> RunLevel:
    """Return a level from its row. Raise ValueError, TypeError or KeyError for an invalid row."""
    if row["state"] not in _STATES:
        raise ValueError(row["state"])
    name, digest = (single_line(escape_invalid_xml(str(row[key])), 100) for key in ("level", "list"))
    return RunLevel(name, str(row["state"]), int(row["passed"]), int(row["cases"]), digest)
